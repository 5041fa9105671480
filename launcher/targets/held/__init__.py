"""Target ``held``: runs in the nodes of a hold."""
