"""``env``: what people need who start nodes by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launcher.api.choose_target import target_of
from launcher.api.resizing import join_run
from launcher.commands.arguments import is_job_named, run_root
from launcher.commands.job_named import read_job
from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.runs.folder import find_run
from launcher.targets.by_hand import plan_by_hand, render_by_hand


def env(arguments: argparse.Namespace) -> None:
    """Prints the settings of a node."""
    if is_job_named(arguments) == (arguments.join is not None):
        both = "both were given" if is_job_named(arguments) else "none was given"
        raise InputError(
            f"either a script or job file, or --join RUN: {both}",
            f"{typed.command('env', 'train.py')}, or {typed.command('env', '--join', 'RUN')}",
        )
    if arguments.join is not None:
        joined, index = join_run(find_run(run_root(arguments), arguments.join))
        target = target_of(joined, run_root(arguments))
        sys.stdout.write(target.render(joined, (index,)).shell_to_join())
        return
    job = read_job(arguments)
    plan = plan_by_hand(
        job,
        endpoint=arguments.rdzv_endpoint,
        node_rank=arguments.node_rank,
        local_addr=arguments.local_addr,
        run_root=str(run_root(arguments).absolute()),
        cwd=str(Path.cwd()),
    )
    sys.stdout.write(render_by_hand(plan, arguments.node_rank))
