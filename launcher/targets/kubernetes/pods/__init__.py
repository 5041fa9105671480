"""The pods of a run: what the cluster says of them, their logs, and why they do not start."""
