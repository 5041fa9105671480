"""How often one looks at what cannot tell by itself, and how soon a cut connection is tried again.

Standard library only, and no newer than Python 3.9: hosts import it with a Python of their own.
"""

SOON_S = 0.05
"""What comes in a moment, and somebody waits for it: an answer, the end of a process."""
POLL_S = 0.1
"""What may take long on this machine: a run, its output, an agent that must stop."""
LOOK_S = 0.25
"""What costs more to look at: the processes of workers, a folder that nodes share."""
SLOW_LOOK_S = 1.0
"""What seldom comes, or is asked of others: a request to stop, a run that no launcher follows."""
RARE_LOOK_S = 5.0
"""What hardly ever changes: the newest generation, the events of a pod that is missing."""
RETRY_S = 1.0
"""A connection that was cut: to a host, or to a cluster's API."""
