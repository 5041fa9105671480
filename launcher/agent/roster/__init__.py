"""The rendezvous ``roster``: decides which nodes are in the group, by monotonic clocks alone."""
