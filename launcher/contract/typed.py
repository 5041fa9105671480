"""The launcher's own commands in messages, complete, so that a person can type them as they are;
and paths.

The command line sets the program and the options of its own call. A caller from Python gets
commands of ``launcher``, without options.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

ABOUT_RUNS = (
    *("logs", "status", "stop", "scale", "report", "stacks", "why", "ps", "exec"),
    *("top", "profile", "clean"),
)
"""Commands that look for runs: they take the options by which this call found its runs."""

_program = "launcher"
_finds_runs: tuple[str, ...] = ()


@contextlib.contextmanager
def as_called(program: str, finds_runs: Sequence[str] = ()) -> Iterator[None]:
    """Makes ``command`` name ``program`` inside the block, in all threads.

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
    """What a person types in place of ``launcher``, quoted."""
    return _program


def command(name: str, *words: str) -> str:
    """A command of the launcher to type, such as ``launcher stop RUN``; its words are quoted."""
    options = _finds_runs if name in ABOUT_RUNS else ()
    return " ".join((_program, shlex.join((name, *options, *words))))


def shown(path: Path) -> str:
    """An absolute path as people type it: from the current folder, if it lies below.

    Below ``/`` that would only take its first character away.
    """
    with contextlib.suppress(ValueError, OSError):  # OSError: the current folder is gone
        if (here := Path.cwd()) != Path("/"):
            return str(path.relative_to(here))
    return str(path)
