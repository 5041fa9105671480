"""A run's folder, and what is told from it."""
