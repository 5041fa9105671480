"""``report``: what happened to a run. Apart from ``ps``, which need not wait for its imports."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.api.report import report_run
from launcher.api.why import read_named_run
from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, InputError
from launcher.runs.page import render_page
from launcher.runs.plot import draw_svg, write_plot
from launcher.runs.report import render_postmortem
from launcher.verdict.verdict import decide_verdict, render_verdict


def report(arguments: argparse.Namespace) -> int:
    """Tells what happened to a run."""
    run = find(arguments)
    told = report_run(run, SystemClock().wall())
    if arguments.html:
        evidence = read_named_run(run)
        verdict = decide_verdict(evidence)
        said = render_verdict(verdict) if verdict.certainty else ""
        write_page(arguments.html, render_page(told, said, draw_svg(told)))
    if arguments.png:
        write_plot(told.run_id, told.goodput, Path(arguments.png))
    if arguments.json:
        print(json.dumps(told.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_postmortem(told))
    return int(ExitCode.OK)


def write_page(path: str, page: str) -> None:
    """Writes what ``--html`` names. Raises ``InputError``."""
    try:
        write_atomically(Path(path), page)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise InputError(what, "name another file: --html FILE") from error
