"""``report``: what happened to a run, as text, JSON or a page. Its own module, so that ``ps`` does
without its imports.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.api.report import report_run
from launcher.commands.parsing.arguments import run_root
from launcher.commands.runs import find
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError
from launcher.runs.folder import RunFolder
from launcher.runs.page import render_page
from launcher.runs.particulars import Particulars, read_particulars
from launcher.runs.plot import draw_course, draw_lives
from launcher.runs.report import Postmortem, render_postmortem
from launcher.verdict.evidence import read_run
from launcher.verdict.verdict import decide_verdict, render_verdict


def report(arguments: argparse.Namespace) -> None:
    """Tells what happened to a run."""
    if arguments.with_run and not arguments.html:
        raise InputError("--with goes with --html", "add --html FILE, or leave --with out")
    runs = [_find(arguments)]
    if arguments.with_run:
        arguments.run = arguments.with_run
        runs.append(_find(arguments))
    reports = [report_run(run, SystemClock().wall()) for run in runs]
    if arguments.html:
        sides = [*map(_read_side, runs, reports)]
        courses = {each.run_id: each.goodput for each in reports if each.goodput}
        pictures = [draw_course(courses, by=by) for by in ("time", "samples")]
        # Without pictures, one reason is shown once.
        write_page(arguments.html, render_page(sides, list(dict.fromkeys(pictures))))
    if arguments.json:
        print(json.dumps(reports[0].to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_postmortem(reports[0]))


def _find(arguments: argparse.Namespace) -> RunFolder:
    """As ``find``; also a folder that has lost its plan. Raises ``InputError``."""
    try:
        return find(arguments)
    except InputError:
        folder = run_root(arguments) / arguments.run
        left = (protocol.NODES_DIR, protocol.OUTCOME_FILE)
        if any((folder / name).exists() for name in left):
            return RunFolder(folder.resolve())
        raise


def _read_side(run: RunFolder, report: Postmortem) -> Particulars:
    nodes = {n.node_index: f"{n.state}: {n.detail}" for n in report.nodes if n.state and n.detail}
    verdict = decide_verdict(read_run(run, state=report.state, nodes=nodes))
    shown = render_verdict(verdict) if verdict.certainty else ""
    return read_particulars(run, report, shown, draw_lives(report))


def write_page(path: str, page: str) -> None:
    """Writes what ``--html`` names, and says so. Raises ``InputError``."""
    try:
        write_atomically(Path(path), page)
        print(f"wrote {path}", file=sys.stderr)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise InputError(what, "name another file: --html FILE") from error
