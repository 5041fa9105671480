"""Shell text that means exactly the given words, whatever quotes, spaces or newlines they hold."""

from __future__ import annotations

import csv
import functools
import io
import shlex

from launcher.contract.node_plan import Env

CONTINUED = " \\\n  "
"""Between two lines of one command."""

# The nodes of a plan share most of their words.
quote = functools.lru_cache(maxsize=4096)(shlex.quote)


def render_line(argv: tuple[str, ...]) -> str:
    """One command, quoted for a POSIX shell."""
    return " ".join(map(quote, argv))


def render_block(argv: tuple[str, ...], *, head: int = 1, per_line: int = 1) -> str:
    """One command over several lines: ``head`` words first, then ``per_line`` on each."""
    words = [quote(word) for word in argv]
    rest = [" ".join(words[i : i + per_line]) for i in range(head, len(words), per_line)]
    return CONTINUED.join([" ".join(words[:head]), *rest])


def render_exports(env: Env) -> str:
    """``export`` lines that a shell evaluates."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in env)


def render_start(cwd: str, env: Env, argv: tuple[str, ...]) -> list[str]:
    """Lines with which a shell goes to the folder, exports the variables and execs the program."""
    exports = render_exports(env).rstrip("\n")
    return [f"cd {quote(cwd)} || exit", exports, render_block(("exec", *argv), head=4)]


def render_csv(fields: list[str]) -> str:
    """Fields as docker's --mount and --gpus read them: one line, a comma inside a field quoted."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
