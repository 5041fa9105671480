"""The mathematics of what ranks send each other; each module can be used in a loop of one's own."""
