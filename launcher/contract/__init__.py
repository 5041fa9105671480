"""What launcher, agent and training agree on: names, reasons, exit codes, the node's plan."""
