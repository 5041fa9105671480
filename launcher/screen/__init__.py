"""What `launcher top` shows: a run as it is now, refreshed in place."""
