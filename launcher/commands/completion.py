"""What TAB completes in bash, zsh and fish: commands, options, choices and files.

The shell calls the launcher at each TAB and argcomplete answers from the launcher's own parser, so
that there is no list to be kept. Without a TAB, this module is not imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import argcomplete
from argcomplete import completers
from argcomplete.shell_integration import shellcode

from launcher.api.choose_target import targets_of_jobs


def completion(arguments: argparse.Namespace) -> None:
    """Prints what the shell is to read."""
    # bash must not offer files itself for an argument that is no file.
    sys.stdout.write(shellcode(["launcher"], use_defaults=False, shell=arguments.shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell that asks what may follow, and ends the process."""
    if "--" in os.environ["COMP_LINE"].split()[:-1]:
        # Words of the training, whose options are not known here.
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("words", nargs="*", metavar="FILE")
    for action in _actions(parser):
        if action.choices is None and action.nargs != 0:
            # Looked up by argcomplete on each action.
            action.completer = _completer(action)  # type: ignore[attr-defined]
    # print_suppressed: else argcomplete hides options that complete no files.
    argcomplete.autocomplete(parser, always_complete_options=False, print_suppressed=True)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of the program and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _completer(action: argparse.Action) -> Any:
    """Completes files, folders or targets, as the argument asks for; else nothing."""
    if action.dest == "job":
        return completers.FilesCompleter(("py", "yaml", "yml"))
    if action.dest == "on":
        return completers.ChoicesCompleter(dict.fromkeys(targets_of_jobs(), ""))
    if action.metavar == "DIR":
        return completers.DirectoriesCompleter()
    if action.metavar == "FILE":
        return completers.FilesCompleter()
    return completers.SuppressCompleter()
