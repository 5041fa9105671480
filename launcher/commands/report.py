"""``report``: what happened to a run. Apart from ``ps``, which need not wait for its imports."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.api.report import report_run
from launcher.api.why import read_named_run, read_path
from launcher.commands.arguments import run_root
from launcher.commands.runs import find
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, InputError
from launcher.runs.folder import RunFolder
from launcher.runs.page import Side, render_page
from launcher.runs.particulars import read_particulars
from launcher.runs.plot import draw_course, draw_lives
from launcher.runs.report import Postmortem, render_postmortem
from launcher.verdict.verdict import decide_verdict, render_verdict

LEFT = (protocol.NODES_DIR, protocol.OUTCOME_FILE)
"""What a run leaves whose plan is lost."""


def report(arguments: argparse.Namespace) -> int:
    """Tells what happened to a run."""
    if arguments.with_run and not arguments.html:
        raise InputError("--with goes with --html", "add --html FILE, or leave --with out")
    now = SystemClock().wall()
    run = _find(arguments)
    told = report_run(run, now)
    if arguments.html:
        sides = [_read_side(run, told)]
        if arguments.with_run:
            arguments.run = arguments.with_run
            other = _find(arguments)
            sides.append(_read_side(other, report_run(other, now)))
        courses = {side.told.run_id: side.told.goodput for side in sides if side.told.goodput}
        pictures = [draw_course(courses, by=by) for by in ("time", "samples")]
        # One reason is told once.
        write_page(arguments.html, render_page(sides, list(dict.fromkeys(pictures))))
    if arguments.json:
        print(json.dumps(told.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_postmortem(told))
    return int(ExitCode.OK)


def _find(arguments: argparse.Namespace) -> RunFolder:
    """As ``find``; also a folder that has lost its plan. Raises ``InputError``."""
    try:
        return find(arguments)
    except InputError:
        folder = run_root(arguments) / arguments.run
        if not any(
            (folder / name).exists() for name in (protocol.NODES_DIR, protocol.OUTCOME_FILE)
        ):
            raise
        return RunFolder(folder.resolve())


def _read_side(run: RunFolder, told: Postmortem) -> Side:
    try:
        evidence = read_named_run(run)
    except InputError:
        evidence = read_path(run.path)
    verdict = decide_verdict(evidence)
    return Side(
        told=told,
        more=read_particulars(run, told),
        verdict=render_verdict(verdict) if verdict.certainty else "",
        lives=draw_lives(told),
    )


def write_page(path: str, page: str) -> None:
    """Writes what ``--html`` names. Raises ``InputError``."""
    try:
        write_atomically(Path(path), page)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise InputError(what, "name another file: --html FILE") from error
