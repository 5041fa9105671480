"""Findings about machines, and the probe that measures them."""
