"""Target ``starter``: nodes that srun, mpirun or a site's own starter starts, one by one."""
