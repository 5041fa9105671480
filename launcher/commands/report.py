"""``report``: what happened to a run. Apart from ``ps``, which need not wait for its imports."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from launcher.api.report import report_run
from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode
from launcher.runs.plot import write_plot
from launcher.runs.report import render_postmortem


def report(arguments: argparse.Namespace) -> int:
    """Tells what happened to a run."""
    told = report_run(find(arguments), SystemClock().wall())
    if arguments.png:
        write_plot(told.run_id, told.goodput, Path(arguments.png))
    if arguments.json:
        print(json.dumps(told.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_postmortem(told))
    return int(ExitCode.OK)
