"""Signals that reach all processes of a node at once: the supervisor alone acts on them.

Slurm sends SIGTERM to every process of a step. The training has to commit first, so agent, fork
server and guards wait until the supervisor tells them to end. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FOR_SCRIPTS = (signal.SIGUSR1, signal.SIGUSR2)
"""Guards pass these on to scripts. ``scancel --signal`` sends them to all processes of a node."""
Handler = Callable[[int, FrameType | None], Any]

_end_ordered = mmap.mmap(-1, 1)
"""1 once the supervisor has ordered the agent to end. The agent is a fork, and shares it."""


def order_end() -> None:
    """Lets the agent act on the signal that the supervisor sends next."""
    _end_ordered[0] = 1


def forget_supervisor() -> None:
    """Gives this process a flag of its own, after it was forked from another supervisor's agent."""
    global _end_ordered
    _end_ordered = mmap.mmap(-1, 1)


def only_when_ordered(handle: Handler) -> Handler:
    """A handler that does nothing before the supervisor has ordered this process to end."""

    def handle_if_ordered(signum: int, frame: FrameType | None) -> Any:
        return handle(signum, frame) if _end_ordered[0] else None

    return handle_if_ordered


def set_agent_handlers() -> None:
    """Sets the handlers of the agent's process, until torch's agent sets its own."""

    def end(signum: int, _: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    for signum in ENDING:
        signal.signal(signum, only_when_ordered(end))
    ignore_signals(FOR_SCRIPTS)


def ignore_signals(signums: Iterable[signal.Signals] = (*ENDING, *FOR_SCRIPTS)) -> None:
    """Makes this process, a helper that its agent ends in another way, do nothing at these signals.

    By a handler, which its forks can reset. SIG_IGN would stay in fresh interpreters.
    """
    for signum in signums:
        signal.signal(signum, lambda *_: None)
