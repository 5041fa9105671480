"""``--debug`` and ``--debug-port`` of ``run``: what they ask for, and what they need."""

from __future__ import annotations

import argparse
import socket
import sys

from launcher.api.debugging import listen
from launcher.contract.errors import InputError
from launcher.plan.agent_task import TRAINING, Purpose


def read_debugging(arguments: argparse.Namespace) -> tuple[Purpose, socket.socket | None]:
    """What is to be debugged, and the port for an editor. Raises ``InputError``."""
    ranks, port = arguments.debug, arguments.debug_port
    if not ranks:
        if port is not None:
            raise InputError(f"--debug-port {port}: of no rank", f"--debug 0 --debug-port {port}")
        return TRAINING, None
    if len(ranks) > 1:
        given = " ".join(f"--debug {rank}" for rank in ranks)
        raise InputError(f"{given}: one rank at a time", f"--debug {ranks[0]}")
    if arguments.detach or arguments.live:
        way = "--detach" if arguments.detach else "--live"
        raise InputError(
            f"--debug needs this process in this terminal: not with {way}", "one of both"
        )
    if port is not None:
        return Purpose(debug_rank=ranks[0], debug_editor=True), listen(port)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        what = "--debug needs a terminal for pdb: stdin or stderr is none"
        raise InputError(what, f"call it in a terminal, or --debug {ranks[0]} --debug-port 5678")
    return Purpose(debug_rank=ranks[0]), None
