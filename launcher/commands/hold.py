"""``hold``: starts nodes that wait for runs, and tells how to use and end them."""

from __future__ import annotations

import argparse
import sys

from launcher.api.starting import launch
from launcher.api.starting.holding import JOB, check_name, wait_ready
from launcher.api.starting.planning import plan_job
from launcher.commands.job_named import read_job
from launcher.commands.parsing.arguments import open_named, run_root
from launcher.commands.run import create_told
from launcher.contract import typed
from launcher.follow.console import Console
from launcher.plan.agent_task import Purpose


def hold(arguments: argparse.Namespace) -> None:
    """Starts nodes that wait, and returns once they do."""
    root = run_root(arguments)
    check_name(root, arguments.name)
    job = read_job(arguments, JOB)
    purpose = Purpose(hold_idle_s=max(1e-3, arguments.idle_limit))
    planned = plan_job(job, root, opened=open_named(arguments), detached=True, purpose=purpose)
    console = Console(sys.stderr)
    run = create_told(planned, console)
    with launch.ended_if_interrupted(run):
        launch.follow_in_background(run, planned.plan, planned.choice.target, console.note)
        wait_ready(run)
    use = typed.command("run", "train.py", "--in", arguments.name)
    end = typed.command("stop", arguments.name)
    limit = f"after {arguments.idle_limit / 60:g} min without a run"
    console.note(f"{arguments.name} is ready: {use}; it ends {limit}, or by: {end}")
    print(run.run_id, flush=True)
