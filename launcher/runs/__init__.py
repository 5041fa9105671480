"""A run's folder, and what is told from it: the first failure, a report, a timeline, plots."""
