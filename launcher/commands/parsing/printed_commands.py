"""The program's name and the options of this call, as words for the commands that it prints."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from launcher.api.choose_target import rooms
from launcher.contract import typed

OF_THIS_CALL = (
    *("module", "again", "on", "resume", "detach", "verbose"),
    *("debug", "debug_port", "fresh", "hold"),
)
"""Options of ``run`` that another command for the same job uses differently, or does not have."""


def program_name() -> str:
    """How this program is called: by name if a shell would find the same program, else by path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m launcher"
    if shutil.which(called.name) == str(called):
        # kubectl runs the program kubectl-launcher for what is typed as two words.
        plugins = (room.plugin.typed for room in rooms() if room.plugin)
        return next(
            (name for name in plugins if name.replace(" ", "-") == called.name), called.name
        )
    return shlex.quote(typed.shown(called))


def options_to_find_runs(arguments: argparse.Namespace) -> list[str]:
    """The options of this call with which another command finds the same runs."""
    of_rooms = (word for options in arguments.given.values() for word in options.finds_runs_by)
    return [*given(arguments, ("runs",)), *of_rooms]


def options_of_job(arguments: argparse.Namespace) -> list[str]:
    """The options of this ``run`` that change the job, or where it runs, except ``--on``."""
    dests = {action.dest for action in arguments.options.values()}
    return given(arguments, dests.difference(OF_THIS_CALL))


def given(arguments: argparse.Namespace, names: Collection[str]) -> list[str]:
    """Those of the options whose value is not the default, as they are typed."""
    words: list[str] = []
    for action in dict.fromkeys(arguments.options.values()):
        value = getattr(arguments, action.dest, None)
        if action.dest not in names or value in (None, action.default):
            continue
        for item in value if isinstance(value, list) else [value]:
            words += [action.option_strings[-1], *([] if item is True else [str(item)])]
    return words
