"""``env``: a node's settings for people who start nodes by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from launcher.commands.arguments import add_command, add_job_file, natural, read_job, run_root
from launcher.errors import ExitCode


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    env = add_command(
        commands, "env", _env, 'print a node\'s settings for a shell: eval "$(launcher env ...)"'
    )
    add_job_file(env)
    env.add_argument("--node-rank", type=natural, default=0, metavar="N", help="this node, 0-based")
    env.add_argument("--rdzv-endpoint", metavar="HOST[:PORT]", help="where all nodes reach node 0")
    env.add_argument("--local-addr", metavar="HOST", help="where the others reach this node")


def _env(arguments: argparse.Namespace) -> int:
    from launcher.by_hand import plan_by_hand, render_by_hand

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
