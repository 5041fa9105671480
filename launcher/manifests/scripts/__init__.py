"""Training scripts that anybody wrote, and the rules that ``launcher check`` has for them. Pure."""
