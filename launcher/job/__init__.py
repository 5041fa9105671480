"""The job file: what a person asked for, read and validated."""
