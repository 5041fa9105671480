"""Who belongs to the run's group: a coordinator decides, each agent is one of its clients."""
