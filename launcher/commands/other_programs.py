"""Words of torchrun and python, typed out of habit: what they are called here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
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


def with_training(command: str) -> str:
    """How a command that starts scripts is typed."""
    return f"{typed.command(command, 'JOB')} [options] -- [training arguments]"


def check_command(words: Sequence[str], takes_training: Sequence[str]) -> None:
    """Raises ``InputError`` where torchrun or python stands before the script.

    ``words`` are all before ``--``, and ``takes_training`` the commands that start scripts.
    """
    if not words or words[0] not in takes_training:
        return
    for before, word in pairwise(words):
        if word == "-m" or word.endswith(JOB_ENDINGS) or Path(word).is_dir():
            return
        if re.fullmatch(STARTS_SCRIPTS, word) and not before.startswith("-"):
            what = f"{word}: a program, and no script or job file"
            raise InputError(what, f"leave it out: {with_training(words[0])}")


def decided_here(words: Sequence[str]) -> list[str]:
    """Those of the words that are torchrun's and that the launcher decides."""
    return [
        word.partition("=")[0] for word in words if word.replace("_", "-").startswith(DECIDED_HERE)
    ]
