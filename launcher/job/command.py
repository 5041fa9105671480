"""The key ``command``: what torchrun runs, without a shell in between. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from launcher.job.refused import NotAcceptedError

_OPERATOR = re.compile(r"&&|\|\||[|;&<]|[12&]?>>?|[12]>&[12]")
"""A shell's operators."""
_JOINED_OPERATOR = re.compile(rf"{_OPERATOR.pattern}|[12&]?>>?[^>]*[^>]|.+;")
"""In one text also joined to a word: ``>log``, ``train.py;``."""
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)


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
        words = tuple(_command_word(place, word) for place, word in enumerate(value))
        _check_operators(words, _OPERATOR)
    else:
        raise NotAcceptedError
    _check_first_words(words)
    return words


def _command_word(place: int, word: object) -> str:
    if isinstance(word, str | int | float):
        return parse_text(word)
    kind = "nothing" if word is None else "a list or mapping"
    found = f"{kind} as word {place}"
    raise NotAcceptedError("words: text or numbers", found=found, fix="put the word in quotes")


def _check_operators(words: Iterable[str], operators: re.Pattern[str]) -> None:
    """No shell reads a command: its operators would become arguments of the script."""
    for word in words:
        if operators.fullmatch(word):
            meant = f"""; if an argument is meant, quote it in one text: "train.py '{word}'\""""
            fix = _in_own_shell(word) + (meant if _OPERATOR.fullmatch(word) else "")
            raise NotAcceptedError("words for the script: no shell reads them", found=word, fix=fix)


def _in_own_shell(operator: str) -> str:
    if ">" in operator:
        return "in your own shell: launcher run JOB > FILE"
    if operator == "<":
        return "let the script open the file"
    if operator == "&":
        return "launcher run JOB --detach"
    joined = operator[-2:] if operator[0] in "&|" else ";"
    return f"in your own shell: launcher run JOB {joined} ..."


def _check_first_words(words: tuple[str, ...]) -> None:
    found, fix = _wrong_beginning(*(*words, "", "")[:2])
    if fix:
        raise NotAcceptedError(found=found, fix=fix)


def _wrong_beginning(first: str, second: str) -> tuple[str, str]:
    """What a command may not begin with, and the fix; empty where it begins well."""
    both, fix = f"{first} {second}".strip(), ""
    if not first:
        return "no words", "for example [train.py, --epochs, 3]"
    program = first.rpartition("/")[2]
    if re.fullmatch(r"torchrun|python[0-9.]*|torch\.distributed\.(run|launch)", program):
        fix = f"drop {first}: the launcher starts torchrun, and torchrun starts Python"
    elif first != "-m":
        if first.startswith("-"):
            options = "torchrun's options have keys of their own (nnodes, nproc_per_node, rdzv)"
            fix = f"drop it: {options}"
    elif second in ("torch.distributed.run", "torch.distributed.launch"):
        return both, f"drop {both}: the launcher starts torchrun itself"
    elif not second or second.startswith("-"):
        return "-m without a module", "name the module after -m"
    elif not re.fullmatch(r"[^\s/.]+(\.[^\s/.]+)*", second):
        named = "name it as import does, such as -m train.main"
        return both, f"{named}; a script is named without -m"
    return first, fix
