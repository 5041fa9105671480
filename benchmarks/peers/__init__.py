"""The other sides of the benchmarks that have to be written: plain code without this project."""
