"""``node``: one node of a run, where srun, mpirun or a site's own script starts the nodes."""

from __future__ import annotations

import argparse
import os
import sys

from launcher.api.starting.node import become_node
from launcher.commands.job_named import read_job
from launcher.commands.parsing.arguments import run_root


def node(arguments: argparse.Namespace) -> int:
    """Becomes the node's agent, and so never returns."""

    def note(line: str) -> None:
        print(f"launcher: {line}", file=sys.stderr, flush=True)

    become_node(
        read_job(arguments),
        run_root(arguments),
        os.environ,
        note,
        run_id=arguments.run_id,
        extra_args=arguments.extra,
    )
