"""The program that hosts run, with the standard library alone, on Python 3.9 or newer."""
