"""Target ``starter``: nodes that srun, mpirun, flux or a site's own starter starts, one by one."""
