"""The mathematics of the strategies, one module each, for any loop."""
