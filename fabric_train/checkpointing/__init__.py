"""What a checkpoint holds, how it is committed as a whole, which ones count and are kept."""
