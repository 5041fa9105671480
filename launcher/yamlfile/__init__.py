"""YAML with the file and line of every key."""
