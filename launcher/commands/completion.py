"""What TAB completes in bash, zsh and fish: commands, options, run ids, job files and scripts.

The shell calls the launcher at each TAB and argcomplete answers from the launcher's own parser, so
that there is no list to be kept. Without a TAB, argcomplete is not imported.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.api.choose_target import targets_of_jobs
from launcher.commands.arguments import add_command, run_root
from launcher.contract import protocol
from launcher.contract.errors import ExitCode

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""In the environment while a shell asks what may follow."""
MODULE_DEPTH = 3
"""How many packages deep modules are looked for."""
MAX_MODULES = 1000
JOB_FILES = (".yaml", ".yml", ".py")


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = (
        'print what makes TAB complete commands, runs and files: eval "$(launcher completion bash)"'
    )
    add_command(commands, "completion", _completion, text, _add_arguments)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _completion(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    # Without bash's own offer of files, where an argument is no file.
    sys.stdout.write(shellcode(["launcher"], use_defaults=False, shell=arguments.shell))
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
            action.completer = _completer(action)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(action: argparse.Action) -> Callable[..., list[str]]:
    kind = str(action.metavar).partition("|")[0]
    return COMPLETERS.get(action.dest) or BY_METAVAR.get(kind, _nothing)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of the program and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                # argcomplete looks into the parser itself.
                action.choices[name] = command.parser
                yield from _actions(command.parser)
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


def _folders(prefix: str, **_: Any) -> list[str]:
    return [path for path in _paths(prefix) if path.endswith("/")]


def _code(prefix: str, **_: Any) -> list[str]:
    from launcher.code.place import IN_IMAGE

    return [*_folders(prefix), IN_IMAGE]


def _modules(**_: Any) -> list[str]:
    """What ``python -m`` finds below the current folder, to a depth of ``MODULE_DEPTH``."""
    return sorted(itertools.islice(_modules_in(Path(), ()), MAX_MODULES))


def _modules_in(folder: Path, parents: tuple[str, ...]) -> Iterator[str]:
    from launcher.code.files import NOT_CODE

    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        name = entry.name.removesuffix(".py")
        if not name.isidentifier() or name == "__init__":
            continue
        if name != entry.name:
            yield ".".join(parents if name == "__main__" and parents else (*parents, name))
        elif name not in NOT_CODE and len(parents) < MODULE_DEPTH and entry.is_dir():
            yield from _modules_in(folder / name, (*parents, name))


def _keys(**_: Any) -> list[str]:
    """The keys of a job file, those of sections with their section's name."""
    from launcher.job.spec import JobSpec

    return [f"{key}=" for key in _keys_of(JobSpec)]


def _keys_of(section: Any) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from (f"{key}.{inner}" for inner in _keys_of(field.annotation))
        else:
            yield key


def _targets(**_: Any) -> list[str]:
    return targets_of_jobs()


def _processes(**_: Any) -> list[str]:
    return ["auto", "cpu", "gpu"]


def _nothing(**_: Any) -> list[str]:
    return []


COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "job": _job_files,
    "module": _modules,
    "on": _targets,
    "code": _code,
    "nproc_per_node": _processes,
    "set": _keys,
    **dict.fromkeys(("run", "resume", "again", "join"), _runs),
    "words": _paths,
}
"""What is offered for an argument, by its name."""
BY_METAVAR: dict[str, Callable[..., list[str]]] = {
    "FILE": _paths,
    "DIR": _folders,
    "NAME=DIR": _paths,
}
"""What is offered for all others, by what ``--help`` calls their value; nothing for numbers."""
