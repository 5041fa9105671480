"""Containers of one Docker engine."""
