"""``env``: what people need who start nodes by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from launcher.commands.arguments import add_command, add_job_file, is_job_named, read_job, run_root
from launcher.commands.parser import natural
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = 'print a node\'s settings for a shell: eval "$(launcher env ...)"'
    add_command(commands, "env", _env, text, _add_arguments)


def _add_arguments(env: argparse.ArgumentParser) -> None:
    add_job_file(env, optional=True)
    env.add_argument(
        "--join", metavar="RUN", help="instead of a job: a script that adds a node to this run"
    )
    env.add_argument("--node-rank", type=natural, default=0, metavar="N", help="this node, 0-based")
    env.add_argument("--rdzv-endpoint", metavar="HOST[:PORT]", help="where all nodes reach node 0")
    env.add_argument("--local-addr", metavar="HOST", help="where the others reach this node")


def _env(arguments: argparse.Namespace) -> int:
    from launcher.targets.by_hand import plan_by_hand, render_by_hand

    if is_job_named(arguments) == (arguments.join is not None):
        both = "both were given" if is_job_named(arguments) else "none was given"
        raise InputError(
            f"either a script or job file, or --join RUN: {both}",
            f"{typed.command('env', 'train.py')}, or {typed.command('env', '--join', 'RUN')}",
        )
    if arguments.join is not None:
        sys.stdout.write(_render_join(arguments))
        return int(ExitCode.OK)
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
    return int(ExitCode.OK)


def _render_join(arguments: argparse.Namespace) -> str:
    from launcher.api.choose_target import open_target
    from launcher.api.joining import join_run, write_task
    from launcher.runs.folder import find_run

    plan, index = join_run(find_run(run_root(arguments), arguments.join))
    write_task(plan, index)
    target = open_target(plan.target, run_root(arguments))
    return target.render(plan, (index,)).shell_to_join()
