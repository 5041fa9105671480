"""Machines reached over SSH."""
