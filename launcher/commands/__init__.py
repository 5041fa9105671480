"""The command line's commands, one module for each group; each imports what it needs itself."""
