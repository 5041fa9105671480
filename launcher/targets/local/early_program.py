"""What runs in the agent's process before there is a plan: imports torch, then becomes the agent.

``python early_program.py``, with a line of JSON on standard input once the plan is made; without
one, as where planning failed or the launcher died, it just ends. Standard library and torch only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import NoReturn

IMPORTED = ("torch", "torch.distributed.launcher.api")
"""What an agent imports before it starts workers."""
SAID_BYTES = 1 << 16


def main() -> None:
    """Returns only where there is nothing to become."""
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    can_fork = import_all()
    stdin = sys.stdin.buffer
    # Until the launcher has planned the run, or has ended.
    if text := stdin.read():
        order = json.loads(text)
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        _move_streams(order["console"])
        if not can_fork:
            os.execv(sys.executable, (sys.executable, *order["argv"]))
        run(order["argv"])


def import_all() -> bool:
    """Whether all that an agent imports is there, and no more than one thread: agents fork."""
    gc.disable()
    try:
        for name in IMPORTED:
            importlib.import_module(name)
    except BaseException:
        return False  # The agent itself tells why.
    # No garbage, and forks share what the collector never touches.
    gc.freeze()
    gc.enable()
    return len(os.listdir("/proc/self/task")) == 1


def run(argv: list[str]) -> NoReturn:
    """Goes on as ``python ARCHIVE NODE-PLAN``."""
    code = 1
    try:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Taking torch's modules apart takes 0.1 s.
        os._exit(code)


def _move_streams(console: str) -> None:
    """Puts the node's console in the place of the file that took what the imports said."""
    said = os.pread(2, SAID_BYTES, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(output, said)
    for source, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(output)


if __name__ == "__main__":
    main()
