"""The parser of the command line: errors of two lines, what is wrong and the fix; options by whole
names only; how ages and seconds are read.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Collection
from typing import Any, NoReturn

from launcher.commands.parsing.other_programs import CALLED_HERE, decided_here
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError, closest

TAKES_TRAINING = ("run", "render", "node", "import", "exec")
"""The commands whose words behind ``--`` go to the training, or are a program."""


class Parser(argparse.ArgumentParser):
    """Takes options only by their whole names; prints errors of two lines, not the whole usage.

    A beginning of an option's name is no option: ``--max 3``, meant for the training, would
    quietly become ``--max-restarts 3``. As to torchrun, ``_`` in a name is ``-``.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **{"allow_abbrev": False, **more})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [self._as_named(word) for word in args]
        return super().parse_known_args(words, namespace)

    def _as_named(self, word: str) -> str:
        name, equals, value = word.partition("=")
        named = name.replace("_", "-")
        return f"{named}{equals}{value}" if named in self._option_string_actions else word

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own method ignores a full disk.
        if message:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        what, fix = _explain(message, f"{self.prog} --help")
        self.exit(int(ExitCode.BAD_INPUT), f"error: {what}\n  fix: {fix}\n")


def _explain(message: str, see: str) -> tuple[str, str]:
    """argparse's words, with what to type; ``see`` shows the command's help."""
    if match := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
        choices = re.findall(r"'([^']*)'", match[2]) or match[2].split(", ")
        habit = CALLED_HERE.get(match[1])
        close = habit if habit in choices else closest(match[1], choices)
        where = message.split(":")[0].removeprefix("argument ")
        what = f"{where} {_one_line(match[1])}: not one of {', '.join(choices)}"
        return what, f"did you mean {close}?" if close else see
    if re.fullmatch(r"argument (JOB|-m): not allowed with argument (JOB|-m)", message):
        what = "-m names a module, and another word names a script or job file: one of them"
        return what, "what is for the training goes behind --, as in -m MODULE -- --lr 3"
    if re.fullmatch(r"one of the arguments JOB .* is required", message):
        message = "the following arguments are required: JOB"
    if message.startswith("the following arguments are required: "):
        names = message.partition(": ")[2]
        return f"{names} is missing", see
    return _one_line(message.removeprefix("argument ")), see


def check_known(
    arguments: argparse.Namespace, unknown: list[str], given: list[str], extra: list[str]
) -> None:
    """Raises ``InputError`` for ``unknown`` words, which the command does not take; with the fix.

    ``given`` are all words before ``--`` and ``extra`` all after it.
    """
    if not unknown:
        return
    command, words = arguments.command, _one_line(" ".join(unknown))
    if command == "render" and unknown[0].partition("=")[0] == "--in":
        what = f"{words}: held nodes fork a run, and start nothing that could be rendered"
        others = (word for word in given if word not in unknown)
        raise InputError(what, f"as on nodes of its own: {typed.command(*others)}")
    option = _option_meant(unknown[0], arguments.options)
    meant = f"did you mean {option}? " if option else ""
    if command not in TAKES_TRAINING:
        what = f"{words}: {typed.command(command)} does not take it"
        raise InputError(what, f"{meant}{typed.command(command, '--help')}")
    if ours := decided_here(unknown):
        meant = f"leave out {', '.join(ours)}, which the launcher decides; "
    fix = f"{typed.command(command, 'JOB')} [options] -- [training arguments]"
    before = given[: -len(unknown)]
    if given == [*before, *unknown]:
        # Only at the end is it clear which words are values of the unknown options.
        fix = typed.command(*before, "--", *unknown, *extra)
    what = f"{words}: no option of {command}"
    raise InputError(what, f"{meant}what is for the training goes behind --: {fix}")


def _option_meant(word: str, options: Collection[str]) -> str:
    """The option that was most likely meant; empty for none."""
    name = word.partition("=")[0].replace("_", "-")
    if name in CALLED_HERE:
        return CALLED_HERE[name] if CALLED_HERE[name] in options else ""
    if not name.startswith("--"):
        return ""
    # As in torchrun, a beginning that only one option has means that option.
    begun = [option for option in options if option.startswith(name) and len(name) > 4]
    return begun[0] if len(begun) == 1 else closest(name, options, cutoff=0.75)


def _one_line(text: str) -> str:
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


# -- types of options -----------------------------------------------------------------------------


def natural(text: str) -> int:
    """A whole number that is not negative; for ``type=``."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds that is not negative and has an end; for ``type=``."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return number


def age(text: str) -> float:
    """A time in seconds, given as ``7d``, ``12h``, ``30min`` or ``90s``; for ``type=``."""
    match = re.fullmatch(r"([0-9]{1,6}) ?(d|h|min|s)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no age such as 7d, 12h, 30min or 90s")
    return int(match[1]) * {"d": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0}[match[2]]


MAX_SECONDS = 31_536_000
"""A year."""
