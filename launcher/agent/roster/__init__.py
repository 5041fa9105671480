"""The rendezvous ``roster``: who is in the group, judged by counters and monotonic clocks."""
