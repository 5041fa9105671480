"""The launcher's own commands in messages, with all that a person has to type after this call.

The command line says what its call had. From Python, commands are those of ``launcher``, without
options.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence

ABOUT_RUNS = ("logs", "status", "stop", "scale", "report", "stacks", "why", "ps", "exec", "shell")
"""Commands that look for runs: they take the options by which this call found its runs."""

_program = "launcher"
_finds_runs: tuple[str, ...] = ()


@contextlib.contextmanager
def as_called(program: str, finds_runs: Sequence[str] = ()) -> Iterator[None]:
    """In the block, and in all threads, commands are those of ``program``.

    ``program`` is quoted already; ``finds_runs`` are options for the commands about runs.
    """
    global _program, _finds_runs
    before = _program, _finds_runs
    _program, _finds_runs = program, tuple(finds_runs)
    try:
        yield
    finally:
        _program, _finds_runs = before


def program() -> str:
    """What stands in the place of ``launcher``, quoted."""
    return _program


def command(name: str, *words: str) -> str:
    """A command of the launcher to type, such as ``launcher stop RUN``; its words are quoted."""
    options = _finds_runs if name in ABOUT_RUNS else ()
    return " ".join((_program, shlex.join((name, *options, *words))))
