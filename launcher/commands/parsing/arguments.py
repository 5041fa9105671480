"""Which job, target, run folder and runs the arguments of a command name, without reading a job
file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.api.choose_target import name_here, room_of

if TYPE_CHECKING:
    from launcher.follow.target import Target


def is_job_named(arguments: argparse.Namespace) -> bool:
    """Whether a script, a module, a job file or an earlier run was named."""
    return any(getattr(arguments, name, None) is not None for name in ("job", "module", "again"))


def words_of_job_named(arguments: argparse.Namespace) -> list[str]:
    """The script, module, job file or earlier run as it was typed."""
    if getattr(arguments, "again", None) is not None:
        return ["--again", arguments.again]
    return [arguments.job] if arguments.module is None else ["-m", arguments.module]


def target_named(arguments: argparse.Namespace) -> str | None:
    """The name of the target that the command line asks for; None if it names none."""
    named = (name for name, given in arguments.given.items() if given.is_named)
    return arguments.on or next(named, None)


def open_named(arguments: argparse.Namespace) -> Target | None:
    """The target that the options name, or that this process was given; None without either."""
    name = target_named(arguments) or (
        None if getattr(arguments, "again", None) else name_here(os.environ, _note)
    )
    return room_of(name).open(run_root(arguments), arguments) if name else None


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def rooms_of_runs(arguments: argparse.Namespace) -> list[str]:
    """The targets where the options say to look for runs."""
    return [name for name, given in arguments.given.items() if given.names_runs]


def run_root(arguments: argparse.Namespace) -> Path:
    """The folder of the run folders, as it was given."""
    return Path(arguments.runs)
