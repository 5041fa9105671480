"""What ``doctor`` measures: programs that run in the nodes, and what follows from their answers."""
