"""Programs that this process starts: short ones, children, conversations, work that outlives it."""
