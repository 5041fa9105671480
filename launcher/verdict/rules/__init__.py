"""What the lines of logs mean: one file for each family of rules."""
