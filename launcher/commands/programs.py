"""``exec`` and ``shell``: programs in the nodes of a run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from launcher.api.programs import plan_shell, run_in_nodes
from launcher.commands.runs import find
from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.targets import children


def exec_in(arguments: argparse.Namespace) -> int:
    """Runs a program in all nodes, or in one."""
    if not arguments.extra:
        raise InputError(
            "exec: which program?", typed.command("exec", arguments.run, "--", "nvidia-smi")
        )

    def show(index: int, line: str) -> None:
        # In one call, as other threads write the lines of other nodes.
        sys.stdout.write(f"[{index}] {line}\n")
        sys.stdout.flush()

    codes = run_in_nodes(find(arguments), arguments.extra, show, arguments.node)
    for index, code in codes.items():
        if code:
            print(f"node {index}: exit code {code}", file=sys.stderr)
    return max(codes.values())


def shell(arguments: argparse.Namespace) -> int:
    """Goes on as a shell in a node."""
    words = plan_shell(find(arguments), arguments.node)
    try:
        children.become(words, cwd=str(Path.cwd()), env=os.environ)
    except FileNotFoundError:
        raise InputError(f"there is no {words[0]} on this machine", "install it") from None
