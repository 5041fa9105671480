"""Measures this project beside its peers, in one run: ``python -m benchmarks``."""
