"""``ps``, ``status``, ``logs``, ``stop`` and ``scale``; and which run a name means, here or where
it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from launcher.api.choose_target import room_of, rooms
from launcher.api.listing import (
    describe_none,
    find_elsewhere,
    find_going_on,
    list_runs,
    read_state,
    read_status,
    render_status,
    render_table,
    show_logs,
    tell_columns,
    with_size,
)
from launcher.api.resizing import scale_run
from launcher.api.starting.holding import release
from launcher.api.stopping import stop_run
from launcher.commands.parsing.arguments import rooms_of_runs, run_root
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError, TargetError
from launcher.contract.protocol import LATEST_LINK
from launcher.follow.target import ListedRun
from launcher.runs.folder import RunFolder, find_run
from launcher.runs.summary import render_headline

PAGE_FILE = "report.html"
"""The page in a run's folder to which the index of ``ps --html`` links."""


def ps(arguments: argparse.Namespace) -> None:
    """Lists runs."""

    def note(line: str) -> None:
        print(f"note: {line}", file=sys.stderr)

    root, everything = run_root(arguments), arguments.all or bool(arguments.html)
    named = [room_of(name) for name in rooms_of_runs(arguments)]
    alone = any(room.finds_runs == "alone" for room in named)
    rows = [] if alone else list_runs(root, everything=everything)
    for room in named:
        rows += room.list_runs(arguments, root, note, everything=everything)
    rows = [with_size(row) for row in rows] if arguments.long else rows
    if arguments.html:
        _write_index(arguments.html, rows, root)
    if arguments.json:
        print(json.dumps([row.to_jsonable() for row in rows], indent=2))
    elif rows:
        sys.stdout.write(render_table(rows))
    else:
        none = describe_none(root, everything=everything, is_here=not alone)
        sys.stdout.write(none)
        if not alone:
            for live in find_elsewhere(root):
                where = shlex.quote(str(Path(live.run_dir).parent))
                see = f"{typed.program()} status {live.run_id} --runs {where}"
                print(f"{live.run_id} runs here; see: {see}")


def _write_index(file: str, rows: Sequence[ListedRun], root: Path) -> None:
    """Each run links to the page that ``report --html`` has made in its folder, if any."""
    from launcher.commands.report import write_page
    from launcher.runs.page import render_index

    made = [Path(row.folder, PAGE_FILE) if row.folder else None for row in rows]
    here = Path(file).absolute().parent
    links = [quote(os.path.relpath(p, here)) if p and p.exists() else "" for p in made]
    write_page(file, render_index(tell_columns(rows), links, str(root)))


def status(arguments: argparse.Namespace) -> None:
    """Shows one run and its nodes."""
    run = find(arguments)
    status = read_status(run)
    if arguments.json:
        print(json.dumps(status.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_status(status))
    if status.unseen:
        raise TargetError(status.unseen, status.fix)


def logs(arguments: argparse.Namespace) -> int:
    """Prints a run's output."""
    run = find(arguments)
    try:
        show_logs(
            run,
            sys.stdout.buffer,
            sys.stderr.buffer,
            follow=arguments.follow,
            rank=arguments.rank,
            agents=arguments.verbose,
        )
    except KeyboardInterrupt:
        end = typed.command("stop", run.run_id)
        print(f"{run.run_id} is left as it is; end it: {end}", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    outcome = read_state(run, run.read_plan())[1] if arguments.follow else None
    if outcome is None or outcome.exit_code == ExitCode.OK:
        return 0
    report = typed.command("report", run.run_id)
    print(f"launcher: {render_headline(outcome)}; see: {report}", file=sys.stderr)
    return outcome.exit_code


def stop(arguments: argparse.Namespace) -> None:
    """Ends a run; a hold by its name only if no run uses it, by its id in any case."""
    run, others = _find_to_stop(arguments)
    plan = run.read_plan()
    try:
        if plan.is_hold and arguments.run == plan.job_name and run.read_outcome() is None:
            done = release(run_root(arguments), run.run_id, arguments.grace)
        else:
            done = stop_run(run, arguments.grace, keep=arguments.keep)
    except KeyboardInterrupt:
        status = typed.command("status", run.run_id)
        print(f"{run.run_id} was asked to stop, and may still run; look: {status}", file=sys.stderr)
        raise
    print(done, file=sys.stderr)
    for other in others:
        line = f"{other.run_id} still runs; end it: {typed.command('stop', other.run_id)}"
        print(line, file=sys.stderr)


def _find_to_stop(arguments: argparse.Namespace) -> tuple[RunFolder, list[RunFolder]]:
    """The named run; without a name, the newest that goes on, and the others that go on."""
    if arguments.run != LATEST_LINK or rooms_of_runs(arguments):
        return find(arguments), []
    going_on = find_going_on(run_root(arguments))
    if not going_on:
        return find(arguments), []
    return going_on[-1], going_on[:-1]


def scale(arguments: argparse.Namespace) -> None:
    """Changes the number of nodes of a run."""
    done = scale_run(find(arguments), arguments.nodes)
    print(done, file=sys.stderr)


def find(arguments: argparse.Namespace) -> RunFolder:
    """The run that was named, in a folder here or where it runs. Raises ``InputError``.

    A run without a folder here gets a temporary one, which is gone when the command ends.
    """
    root = run_root(arguments)
    for room in rooms():
        if room.name in rooms_of_runs(arguments) and (run := room.find_run(arguments, root)):
            return run
    try:
        run = find_run(root, arguments.run, goes_on=True)
    except InputError as error:
        for room in rooms():
            if (run_there := room.find_run(arguments, root, error)) is not None:
                return run_there
        raise
    name = Path(arguments.run).name
    if name in (run.run_id, LATEST_LINK) or run.read_outcome() is None:
        return run
    # This run's id only begins so, and it has ended: a run that goes on may have exactly this name.
    with contextlib.suppress(InputError, TargetError):
        otherwise = InputError(f"no run {arguments.run!r} goes on here")
        there = room_of(run.read_plan().target).find_run(arguments, root, otherwise)
        return there or run
    return run
