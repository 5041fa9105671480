"""Target ``slurm``: jobs of a Slurm cluster, submitted from a login node."""
