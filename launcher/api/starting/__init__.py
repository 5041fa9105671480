"""From a job to what runs: planned, launched, one node of it, nodes that are held."""
