"""``node``: one node of a run, where srun, mpirun or a site's own script starts the nodes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from launcher.commands.arguments import add_command, add_job_file, read_job, run_root

EPILOG = """Started once on each node: srun --ntasks-per-node=1 launcher node train.py, mpirun -N 1
launcher node train.py, mpiexec -ppn 1 launcher node train.py. Each process finds out from its
environment which node it is, and how many there are. Under any other starter set
LAUNCHER_NODE_INDEX to 0, 1, ... on the nodes, with the same --nnodes and --run-id on all. All nodes
must see the folder of the runs. The exit code is that of the node's agent.
docs/inside-an-allocation.md"""


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "be one node of a run, where srun, mpirun or another starter starts the nodes"
    add_command(commands, "node", _node, text, _add_arguments)


def _add_arguments(node: argparse.ArgumentParser) -> None:
    add_job_file(node)
    node.epilog = EPILOG
    node.usage = f"STARTER {node.prog} JOB [options] [-- training arguments]"
    node.add_argument(
        "--run-id",
        metavar="ID",
        help="the run's id, the same on all nodes (default: the job's name and the scheduler's id)",
    )


def _node(arguments: argparse.Namespace) -> int:
    from launcher.api.node import become_node

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
