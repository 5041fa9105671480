"""Launches multi-node PyTorch training from one job file; importing this imports nothing heavy."""

__version__ = "0.2.0"
