"""``python -m launcher`` and the command ``launcher``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    from launcher.cli import run_command

    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
