"""``exec``: a program in the nodes of a run, or a terminal in one of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from launcher.api.programs import plan_shell, run_in_nodes
from launcher.commands.runs import find
from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.contract.protocol import LATEST_LINK
from launcher.targets.subprocesses import children


def exec_in(arguments: argparse.Namespace) -> int:
    """Runs a program in all nodes, or in one; without a program, goes on as a shell in one."""
    if not arguments.extra:
        _open_terminal(arguments)

    def show(index: int, line: str) -> None:
        # In one call, as other threads write the lines of other nodes.
        sys.stdout.write(f"[{index}] {line}\n")
        sys.stdout.flush()

    codes = run_in_nodes(find(arguments), arguments.extra, show, arguments.node)
    for index, code in codes.items():
        if code:
            print(f"node {index}: exit code {code}", file=sys.stderr)
    return max(codes.values())


def _open_terminal(arguments: argparse.Namespace) -> NoReturn:
    if not sys.stdin.isatty():
        what = (
            "exec: which program? None is behind --; a terminal cannot be opened, as stdin is none"
        )
        fix = typed.command("exec", arguments.run, "--", "nvidia-smi")
        if arguments.run != LATEST_LINK:
            fix = f"{typed.command('exec', '--', arguments.run)}, or in a run {fix}"
        raise InputError(what, fix)
    words = plan_shell(find(arguments), arguments.node or 0)
    try:
        children.become(words, cwd=str(Path.cwd()), env=os.environ)
    except FileNotFoundError:
        raise InputError(f"there is no {words[0]} on this machine", "install it") from None
