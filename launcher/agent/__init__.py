"""The in-node supervisor of the workers; imports the standard library, torch and L0 only."""
