"""The supervisor's process, the first of a node. It never imports torch."""
