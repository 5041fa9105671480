"""``compare``: a job with several numbers of processes, one run after the other."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from launcher.api.python import start
from launcher.commands.arguments import run_root, words_of_job_named
from launcher.commands.printed_commands import given
from launcher.commands.report import write_page
from launcher.contract import protocol, typed
from launcher.contract.errors import ExitCode, InputError, LauncherError
from launcher.follow.table import render_columns
from launcher.runs.comparison import Curve, measure_curve, render_causes, render_rows
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import read_train_ledger
from launcher.runs.page import render_comparison
from launcher.runs.plot import draw_comparison

OWN = ("runs", "module", "again", "nproc_per_node", "html")
"""Options that ``run`` uses in another way, or does not have."""


def compare(arguments: argparse.Namespace) -> int:
    """Runs a job with each number of processes, and prints why the trainings differ."""
    text = arguments.nproc_per_node or ""
    numbers = text.split(",")
    if len({*numbers}) < 2 or not all(number.isdecimal() and int(number) for number in numbers):
        what = f"--nproc-per-node {text}: not two or more numbers of processes"
        raise InputError(what, "--nproc-per-node 1,2,4")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)  # ends the run, as Ctrl-C does
    dests = {action.dest for action in arguments.options.values()}.difference(OWN)
    job = [*words_of_job_named(arguments), *given(arguments, dests)]
    job += ["--set", f"env.{protocol.LEDGER_EVERY_STEP}=1", "--set", "checkpoint_dir=null"]
    curves = []
    for number in dict.fromkeys(numbers):
        try:
            curves.append(_train(arguments, job, number))
        except LauncherError as error:
            print(f"nproc_per_node {number}: {error}", file=sys.stderr)
    if not curves:
        return int(ExitCode.TRAINING_FAILED)
    rows, causes = render_rows(curves), render_causes(curves)
    print("\n".join([*render_columns(rows), *causes]))
    if arguments.html:
        page = render_comparison(" ".join(job), rows, causes, draw_comparison(curves))
        write_page(arguments.html, page)
    return int(ExitCode.OK if len(curves) == len({*numbers}) else ExitCode.TRAINING_FAILED)


def _train(arguments: argparse.Namespace, job: Sequence[str], number: str) -> Curve:
    """Raises ``LauncherError`` if the training fails, or records no steps."""
    words = [*job, f"--nproc-per-node={number}"]
    extra = ["--", *arguments.extra] if arguments.extra else []
    with start([*words, *extra], run_root(arguments).absolute()) as run:
        see = typed.command("logs", "--follow", run.run_id)
        print(f"launcher: nproc_per_node {number}: {run.run_id}; see: {see}", file=sys.stderr)
        # Ended by the run's own end; a signal to this command ends the run.
        outcome = run.wait()
    if outcome.exit_code != ExitCode.OK:
        why = f"{run.run_id}: {outcome.state}, {outcome.cause}"
        raise LauncherError(why, typed.command("why", run.run_id))
    curve = measure_curve(number, read_train_ledger(RunFolder(run.folder), "*"))
    if curve is None:
        what = f"{run.run_id} has no training ledger with its steps, so there is no loss to compare"
        raise LauncherError(what, "how a script writes one: launcher docs goodput")
    return curve
