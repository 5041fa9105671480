"""``stacks``: where all ranks of a run stand now."""

from __future__ import annotations

import argparse
import json
import sys

from launcher.api.stacks import render_stacks, take_stacks
from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import TargetError


def stacks(arguments: argparse.Namespace) -> None:
    """Shows the stacks of all ranks, and which rank is missing in a collective."""
    run = find(arguments)
    report = take_stacks(run, SystemClock(), rank=arguments.rank, native=arguments.native)
    if arguments.json:
        print(json.dumps(report.to_jsonable(), indent=2))
    else:
        sys.stdout.write(render_stacks(report, all_threads=arguments.all_threads))
    if not report.looks:
        why = "; ".join(f"node {index}: {reason}" for index, reason in report.silent.items())
        raise TargetError(f"no node of {run.run_id} answered: {why or 'no node is running'}")
