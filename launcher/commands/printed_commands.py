"""Commands as they are to be typed: this program's name, and the options that lead to a run.

Messages name a command by ``launcher WORD``; what is printed has the rest of what it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from launcher.api.choose_target import rooms
from launcher.commands.arguments import OVERRIDES, RUN_ROOT, shown
from launcher.targets.room import words_given

OF_RUNS = ("logs", "status", "stop", "scale", "report", "ps")
OTHERS = ("run", "node", "build", "render", "doctor", "check", "play", "env", "schema")


@functools.cache
def _command() -> re.Pattern[str]:
    """A command in a message."""
    of_targets: list[str] = []
    for room in rooms():
        room.add_commands(lambda name, *_: of_targets.append(name))
    words = "|".join((*OF_RUNS, *OTHERS, *of_targets))
    return re.compile(rf"(?<![\w./-])launcher ({words})(?![\w-])")


def program_name() -> str:
    """How this command is called: by its name where a shell would find the same, else by path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m launcher"
    if shutil.which(called.name) == str(called):
        # kubectl runs the program kubectl-launcher for what is typed as two words.
        plugins = (room.plugin.typed for room in rooms() if room.plugin)
        return next(
            (typed for typed in plugins if typed.replace(" ", "-") == called.name), called.name
        )
    return shlex.quote(shown(called))


def spell(text: str, arguments: argparse.Namespace) -> str:
    """The text with each command in it as it is to be typed here."""
    program = program_name()
    options = joined(_place_of_runs(arguments))

    def typed(match: re.Match[str]) -> str:
        word = match[1]
        return f"{program} {word}{options if word in OF_RUNS else ''}"

    lines = text.splitlines(keepends=True)
    return "".join(_command().sub(typed, _spell_tools(line, arguments)) for line in lines)


def _spell_tools(line: str, arguments: argparse.Namespace) -> str:
    for room in rooms():
        line = room.spell(line, arguments)
    return line


def options_of_runs(arguments: argparse.Namespace) -> str:
    """What a command about a run takes to find it, with a blank before it; empty for nothing."""
    return joined(_place_of_runs(arguments))


def options_of_job(arguments: argparse.Namespace) -> str:
    """What was given beside a job file, but target, machines and earlier run; with a blank."""
    words = [word for room in rooms() for word in room.words_of_job(arguments)]
    words += words_given(arguments, OVERRIDES)
    for setting in arguments.set:
        words += ["--set", setting]
    return joined([*words, *_runs_folder(arguments)])


def extra_of_job(arguments: argparse.Namespace) -> str:
    """The training's own arguments, with a blank before them."""
    return joined(["--", *arguments.extra]) if arguments.extra else ""


def _place_of_runs(arguments: argparse.Namespace) -> list[str]:
    of_run = arguments.command in OF_RUNS
    places = (room.words_of_place(arguments, of_run=of_run) for room in rooms())
    return [*_runs_folder(arguments), *(word for words in places for word in words)]


def _runs_folder(arguments: argparse.Namespace) -> list[str]:
    usual = os.environ.get("LAUNCHER_RUNS", str(RUN_ROOT))
    with contextlib.suppress(OSError):
        if Path(arguments.runs).absolute() == Path(usual).absolute():
            return []
    return ["--runs", arguments.runs]


def joined(words: list[str]) -> str:
    """The words quoted, each with a blank before it."""
    return "".join(f" {shlex.quote(word)}" for word in words)
