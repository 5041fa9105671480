"""The agent in a node: the standard library, torch and the lowest layer of ``launcher`` alone."""
