"""The training code that a run starts: where it is, which files are sent, what is recorded."""
