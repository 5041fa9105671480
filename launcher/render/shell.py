"""Shell text that means exactly the given words, whatever quotes, spaces or newlines they hold."""

from __future__ import annotations

import itertools
import shlex

from launcher.node_plan import Env


def render_line(argv: tuple[str, ...], env: Env = ()) -> str:
    """One command with its variables in front, quoted for a POSIX shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in env]
    return " ".join([*assignments, *(shlex.quote(word) for word in argv)])


def render_block(argv: tuple[str, ...], per_line: tuple[int, ...] = ()) -> str:
    """One command over several lines; ``per_line`` holds the indices at which a line begins."""
    starts = (0, *per_line, len(argv))
    lines = [
        " ".join(shlex.quote(word) for word in argv[begin:end])
        for begin, end in itertools.pairwise(starts)
        if begin < end
    ]
    return " \\\n  ".join(lines)


def render_exports(env: Env) -> str:
    """``export`` lines that a shell evaluates."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)
