"""Diagnoses machines: the probe that measures them, and the findings."""
