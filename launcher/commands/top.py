"""``top``: a run as it is now, refreshed in place."""

from __future__ import annotations

import argparse
import json
import sys

from launcher.commands.runs import find
from launcher.contract import typed
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError
from launcher.screen.snapshot import read_snapshot, render_snapshot


def top(arguments: argparse.Namespace) -> None:
    """Shows a run until the person leaves it; without a terminal, prints it once."""
    run = find(arguments)
    has_terminal = all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr))
    if arguments.json or not has_terminal:
        now = read_snapshot(run, SystemClock().wall())
        text = json.dumps(now.to_jsonable(), indent=2) if arguments.json else render_snapshot(now)
        print(text)
        return
    run.read_plan()
    # Imported only to be shown: most machines never show a screen.
    try:
        from launcher.screen.app import RunScreen
    except ImportError as error:
        plain = typed.command("top", run.run_id)
        fix = f"pip install 'fabric-train[top]'; without it: {plain} | cat"
        raise InputError("top needs textual, which is not installed", fix) from error
    RunScreen(run, arguments.interval).run()
