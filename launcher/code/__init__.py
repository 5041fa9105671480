"""The training code that a run starts: where it is, what of it travels, and what is recorded."""
