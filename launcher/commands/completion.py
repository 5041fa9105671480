"""What TAB completes in bash, zsh and fish: commands, options, run ids, job files and scripts.

The shell calls the launcher at each TAB and argcomplete answers from the launcher's own parser, so
that there is no list to be kept. Without a TAB, argcomplete is not imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.api.choose_target import ROOMS
from launcher.commands.arguments import add_command, run_root
from launcher.contract import protocol
from launcher.contract.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""In the environment while a shell asks what may follow."""
JOB_FILES = (".yaml", ".yml", ".py")


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = (
        'print what makes TAB complete commands, runs and files: eval "$(launcher completion bash)"'
    )
    parser = add_command(commands, "completion", _completion, text)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _completion(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["launcher"], shell=arguments.shell))
    return int(ExitCode.OK)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell that asks, and ends the process; returns where none asks."""
    if ASKED not in os.environ:
        return
    import argcomplete

    if "--" in os.environ["COMP_LINE"].split()[:-1]:
        # Words of the training, whose options are not known here.
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("words", nargs="*")
    for action in _actions(parser):
        if action.choices is None and action.nargs != 0:
            # Looked up by argcomplete on each action.
            action.completer = COMPLETERS.get(action.dest, _paths)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of the program and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _runs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The newest first."""
    plans = list(run_root(parsed_args).glob(f"*/{protocol.PLAN_FILE}"))
    return [p.parent.name for p in sorted(plans, key=os.path.getmtime, reverse=True)]


def _job_files(prefix: str, **_: Any) -> list[str]:
    return [path for path in _paths(prefix) if path.endswith(("/", *JOB_FILES))]


def _paths(prefix: str, **_: Any) -> list[str]:
    """Files, and folders with a slash at the end; hidden ones only after a point."""
    name = prefix.rpartition("/")[2]
    start = prefix.removesuffix(name)
    try:
        found = sorted(os.scandir(Path(start or ".").expanduser()), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        f"{start}{entry.name}/" if entry.is_dir() else f"{start}{entry.name}"
        for entry in found
        if entry.name.startswith(name) and entry.name.startswith(".") <= name.startswith(".")
    ]


def _targets(**_: Any) -> list[str]:
    return list(ROOMS)


COMPLETERS = {
    "job": _job_files,
    "on": _targets,
    "run": _runs,
    "resume": _runs,
    "again": _runs,
}
"""What is offered for an argument, by its name; paths for all others."""
