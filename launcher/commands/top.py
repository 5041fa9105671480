"""``top``: a run as it is now, refreshed in place."""

from __future__ import annotations

import argparse
import json
import sys

from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, InputError
from launcher.screen.snapshot import read_snapshot, render_snapshot

INSTALL = "pip install 'fabric-train[top]'"


def top(arguments: argparse.Namespace) -> int:
    """Shows a run until it is left; where there is no terminal, once."""
    run = find(arguments)
    is_terminal = all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr))
    if arguments.json or not is_terminal:
        seen = read_snapshot(run, SystemClock().wall())
        told = json.dumps(seen.to_jsonable(), indent=2) + "\n" if arguments.json else None
        sys.stdout.write(told or render_snapshot(seen))
        return int(ExitCode.OK)
    run.read_plan()
    try:
        from launcher.screen.app import RunScreen
    except ImportError as error:
        what = "top needs textual, which is not installed"
        raise InputError(what, f"{INSTALL}; without it: launcher top | cat") from error
    RunScreen(run, arguments.interval).run()
    return int(ExitCode.OK)
