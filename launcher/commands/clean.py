"""``clean``: removes old runs, after it has shown them and asked."""

from __future__ import annotations

import argparse
import sys

from launcher.agent.disk import show_bytes
from launcher.api.choose_target import rooms
from launcher.api.cleaning import find_old
from launcher.api.listing import render_age
from launcher.commands.parsing.arguments import run_root
from launcher.contract.errors import ExitCode, InputError, TargetError
from launcher.follow.table import render_columns


def clean(arguments: argparse.Namespace) -> int:
    """Removes runs that have ended, and what they left."""
    age_s, keep, states = arguments.older_than, arguments.keep, arguments.state or ()
    if age_s is None and keep is None and not states and not arguments.hosts:
        fix = "--older-than 30d, --keep 10 or --state failed"
        raise InputError("nothing says which runs shall go", fix)
    left = [run for room in rooms() for run in room.find_left(arguments, _print)]
    root = run_root(arguments)
    old = find_old(root, left, older_than_s=age_s, keep=keep, states=states)
    table = [("RUN", "PLACE", "STATE", "ENDED", "SIZE")]
    for run in old:
        size, age = show_bytes(run.size_bytes), render_age(run.age_s)
        table.append((run.run_id, run.place, run.state, age, size))
    if old:
        print("\n".join(render_columns(table)))
    total = f"{show_bytes(sum(run.size_bytes for run in old))}, with logs and checkpoints"
    if not old or not (arguments.yes or _agrees(f"remove all of it ({total})? [y/N] ")):
        _print("nothing to remove" if not old else "nothing was removed")
        return int(ExitCode.OK)
    failed = 0
    for run in old:
        try:
            run.remove()
        except (OSError, TargetError) as error:
            failed += 1
            _print(f"{run.run_id}, {run.place}: not removed: {error}")
    _print(f"removed {len(old) - failed} of {len(old)} ({total})")
    return int(ExitCode.TARGET_UNREACHABLE if failed else ExitCode.OK)


def _print(line: str) -> None:
    print(line, file=sys.stderr)


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise InputError("clean asks first, and stdin is no terminal", "--yes")
    print(question, end="", file=sys.stderr, flush=True)
    # Ended by the person's answer, or Ctrl-C.
    return sys.stdin.readline().strip().lower() in ("y", "yes")
