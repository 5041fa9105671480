"""Shell text that means exactly the given words, whatever quotes, spaces or newlines they hold."""

from __future__ import annotations

import shlex

from launcher.node_plan import Env


def render_line(argv: tuple[str, ...], env: Env = ()) -> str:
    """One command with its variables in front, quoted for a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in env]
    return " ".join([*assignments, *(shlex.quote(word) for word in argv)])


def render_block(argv: tuple[str, ...], per_line: int) -> str:
    """One command over several lines, with ``per_line`` words on each after the first."""
    first, *rest = (shlex.quote(word) for word in argv)
    lines = [" ".join(rest[i : i + per_line]) for i in range(0, len(rest), per_line)]
    return " \\\n  ".join([first, *lines])


def render_exports(env: Env) -> str:
    """``export`` lines that a shell evaluates."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)
