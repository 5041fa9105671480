"""What a person can ask for, as functions: run, list, stop, scale, join, doctor."""
