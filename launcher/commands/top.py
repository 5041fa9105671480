"""``top``: a run as it is now, refreshed in place."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError
from launcher.screen.snapshot import read_snapshot, render_snapshot

if TYPE_CHECKING:
    from launcher.screen.app import RunScreen


def top(arguments: argparse.Namespace) -> None:
    """Shows a run until the person leaves it; without a terminal, prints it once."""
    run = find(arguments)
    if arguments.json or not has_terminal():
        seen = read_snapshot(run, SystemClock().wall())
        told = json.dumps(seen.to_jsonable(), indent=2) if arguments.json else render_snapshot(seen)
        print(told)
        return
    run.read_plan()
    load_screen("top", "launcher top | cat")(run, arguments.interval).run()


def has_terminal() -> bool:
    """Whether a screen can be shown."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def load_screen(what: str, without: str) -> type[RunScreen]:
    """The screen, which is imported only to be shown. Raises ``InputError``."""
    try:
        from launcher.screen.app import RunScreen
    except ImportError as error:
        fix = f"pip install 'fabric-train[top]'; without it: {without}"
        raise InputError(f"{what} needs textual, which is not installed", fix) from error
    return RunScreen
