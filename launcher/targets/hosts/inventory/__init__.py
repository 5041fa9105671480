"""Which hosts a run may use: names, ranges, hostfiles, hosts.yaml."""
