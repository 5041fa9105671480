"""Prints numbered lines, so many bytes in all: what two ranks of a talkative training do."""

from __future__ import annotations

import sys

LINE_BYTES = 100


def main() -> None:
    """``printing.py BYTES``."""
    filling = "x" * (LINE_BYTES - 9)
    for number in range(int(sys.argv[1]) // LINE_BYTES):
        print(f"{number:07d} {filling}")


if __name__ == "__main__":
    main()
