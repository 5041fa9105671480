"""``python -m launcher`` and the command ``launcher``."""

from __future__ import annotations

import contextlib
import gc
import os
import sys

GARBAGE_THRESHOLD = 100_000
"""A command makes much and throws little away: with Python's 700, a tenth of its time goes into
looking for garbage. Not switched off, since ``run`` may last for weeks."""


def main() -> None:
    """Runs the command line and ends the process with its code."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    from launcher.cli import run_command

    code = run_command(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # its descriptor was closed
            with contextlib.suppress(OSError):
                stream.flush()
    # Not sys.exit: taking pydantic's classes apart, one by one, lasts as long as the planning.
    os._exit(code)


if __name__ == "__main__":
    main()
