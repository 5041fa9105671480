"""Nodes that are held: who uses them, and the targets of runs in them."""
