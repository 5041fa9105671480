"""A worker's two processes: its guard, and the script itself."""
