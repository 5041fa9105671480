"""A run's folder, and what is read from it: outcome, failures, report."""
