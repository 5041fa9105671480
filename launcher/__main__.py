"""``python -m launcher``, the command ``launcher``, and kubectl's plugin."""

from __future__ import annotations

import contextlib
import gc
import os
import sys

GARBAGE_THRESHOLD = 100_000
"""A command makes much and throws little away: with Python's 700, a tenth of its time goes into
looking for garbage. Not switched off, since ``run`` may last for weeks."""


def main(*, is_plugin: bool = False) -> None:
    """Runs the command line and ends the process with its code."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    from launcher.cli import run_command

    code = run_command(sys.argv[1:], is_plugin=is_plugin)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # Not sys.exit: taking pydantic's classes apart, one by one, lasts as long as the planning.
    os._exit(code)


def kubectl_main() -> None:
    """``kubectl launcher ...``: kubectl runs the program ``kubectl-launcher`` of the PATH."""
    main(is_plugin=True)


if __name__ == "__main__":
    main()
