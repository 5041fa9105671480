"""Observe, decide, act, show: stays with a run until its end, on any target."""
