"""The key ``command``: a script or ``-m`` module and its arguments. Shell operators are refused,
and so are torchrun and python in front. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from launcher.contract import typed
from launcher.job.values import NotAcceptedError

_OPERATOR = re.compile(r"&&|\|\||[|;&<]|[12&]?>>?|[12]>&[12]")
"""Words that a shell reads as operators."""
_JOINED_OPERATOR = re.compile(rf"{_OPERATOR.pattern}|[12&]?>>?[^>]*[^>]|.+;")
"""In a command of one text an operator may also be joined to a word: ``>log``, ``train.py;``."""
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)

_PROGRAM = re.compile(r"torchrun|python[0-9.]*|torch\.distributed\.(run|launch)")
"""Programs that the launcher starts itself."""
_MODULE = re.compile(r"[^\s/.]+(\.[^\s/.]+)*")


def parse_text(value: object) -> str:
    """Text, or a plain number or truth value taken as the text that YAML writes it as.

    A job file's own spelling (``1.10``, ``0x10``) is put in place before, by ``job/file.py``.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        fix = 'write "" where empty text is meant' if value is None else "write it as one text"
        raise NotAcceptedError(fix=fix)
    return value


def parse_command(value: object) -> tuple[str, ...]:
    """What torchrun runs, as a list or as one text split as a POSIX shell splits it."""
    if isinstance(value, str):
        try:
            words = tuple(shlex.split(value))
        except ValueError:
            raise NotAcceptedError(fix="close the quotation, or write a list") from None
        _check_operators(_QUOTED.sub("_", value).split(), _JOINED_OPERATOR)
    elif isinstance(value, list | tuple):
        words = tuple(map(parse_text, value))
        _check_operators(words, _OPERATOR)
    else:
        raise NotAcceptedError
    _check_first_words(words)
    return words


def _check_operators(words: Iterable[str], operators: re.Pattern[str]) -> None:
    """No shell reads a command: its operators would become arguments of the script."""
    for word in words:
        if operators.fullmatch(word):
            shell = f"in your own shell, around the launcher: {typed.command('run', 'JOB')} > FILE"
            fix = f"""{shell}; an argument is quoted: "train.py '{word}'\""""
            raise NotAcceptedError("words for the script: no shell reads them", given=word, fix=fix)


def _check_first_words(words: tuple[str, ...]) -> None:
    first, second = (*words, "", "")[:2]
    both, program, is_module = f"{first} {second}", first.rpartition("/")[2], first == "-m"
    keys = "torchrun's options have keys of their own (nnodes, nproc_per_node, rdzv)"
    named = "name it as import does, such as -m train.main; a script is named without -m"
    starts = "the launcher starts Python and the processes itself"
    for is_wrong, given, fix in (
        (not first, "no words", "for example [train.py, --epochs, 3]"),
        (_PROGRAM.fullmatch(program), first, f"drop {first}: {starts}"),
        (first.startswith("-") and not is_module, first, f"drop it: {keys}"),
        (is_module and _PROGRAM.fullmatch(second), both, f"drop {both}: {starts}"),
        (is_module and second[:1] in "-", "-m without a module", "name the module after -m"),
        (is_module and not _MODULE.fullmatch(second), both, named),
    ):
        if is_wrong:
            raise NotAcceptedError(given=given, fix=fix)
