"""Words of torchrun and python, typed out of habit: what they are called here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.contract import typed
from launcher.contract.errors import InputError

STARTS_SCRIPTS = r"(.*/)?(python[0-9.]*|torchrun)"
JOB_ENDINGS = (".py", ".pyz", ".yaml", ".yml")
CALLED_HERE = {
    **dict.fromkeys(("--nprocs", "--num-processes", "--gpus"), "--nproc-per-node"),
    **dict.fromkeys(("--nodes", "--num-nodes"), "--nnodes"),
}
"""Options of other programs, written with ``-`` in the place of ``_``."""
DECIDED_HERE = ("--standalone", "--node-rank", "--rdzv-", "--master-")
"""Beginnings of torchrun's options that nobody gives here."""


def names_training(words: Sequence[str]) -> bool:
    """Whether a script, module or job file stands where a command should."""
    return bool(words) and (words[0] == "-m" or words[0].endswith(JOB_ENDINGS))


def check_command(
    words: Sequence[str], extra: Sequence[str], takes_training: Sequence[str]
) -> None:
    """Raises ``InputError`` where torchrun or ``--`` stands before the script.

    ``words`` are all before ``--``, ``extra`` all after it, and ``takes_training`` the commands
    that start scripts.
    """
    first = words[0] if words else ""
    if first not in takes_training:
        return
    if len(words) == 1 and names_training(extra):
        fix = f"-- goes behind it: {typed.command(first, *_split_after_job(extra))}"
        raise InputError(f"-- {extra[0]}: what to run stands before --", fix)
    for at, word in enumerate(words[1:], start=1):
        if word == "-m" or word.endswith(JOB_ENDINGS) or Path(word).is_dir():
            return
        if re.fullmatch(STARTS_SCRIPTS, word) and not words[at - 1].startswith("-"):
            left = [*words[1:at], *_without_habits(words[at + 1 :])] or ["train.py"]
            fix = f"leave it out: {typed.command(first, *left)}"
            raise InputError(f"{word}: a program, and no script or job file", fix)


def _without_habits(words: Sequence[str]) -> list[str]:
    """What follows ``torchrun`` or ``python``, with options as they are written here.

    What follows the script is for the training.
    """
    kept: list[str] = []
    for at, word in enumerate(words):
        if names_training(words[at:]):
            return [*kept, *_split_after_job(words[at:])]
        name, equals, value = word.partition("=")
        if name not in ("--standalone", "-u"):
            kept.append(f"{name.replace('_', '-')}{equals}{value}")
    return kept


def _split_after_job(words: Sequence[str]) -> list[str]:
    """With ``--`` between the script, module or job file that ``words`` begin with and the rest."""
    end = 2 if words[0] == "-m" else 1
    return [*words[:end], *(["--", *words[end:]] if words[end:] else [])]


def decided_here(words: Sequence[str]) -> list[str]:
    """Those of the words that are torchrun's and that the launcher decides."""
    return [
        word.partition("=")[0] for word in words if word.replace("_", "-").startswith(DECIDED_HERE)
    ]
