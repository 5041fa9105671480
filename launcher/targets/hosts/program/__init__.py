"""What runs on the hosts: standard library alone, from Python 3.8 on, nothing installed."""
