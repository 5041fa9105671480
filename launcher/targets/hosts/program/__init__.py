"""What runs on the hosts: the standard library alone, on Python 3.9 or newer."""
