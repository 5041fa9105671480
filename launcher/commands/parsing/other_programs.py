"""Words of torchrun, python and earlier versions, typed out of habit: what they are called here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from launcher.contract.errors import closest

JOB_ENDINGS = (".py", ".pyz", ".yaml", ".yml")
CALLED_HERE = {
    **dict.fromkeys(("--nprocs", "--num-processes", "--ntasks-per-node"), "--nproc-per-node"),
    **dict.fromkeys(("--gpus", "--num-gpus", "--gpus-per-node"), "--nproc-per-node"),
    **dict.fromkeys(("--nodes", "--num-nodes", "--num-machines", "-N"), "--nnodes"),
    "-p": "--partition",
    "-e": "--env",
    "--module": "-m",
    **dict.fromkeys(("start", "submit", "launch"), "run"),
    **dict.fromkeys(("kill", "cancel", "delete"), "stop"),
    "rm": "clean",
    "ls": "ps",
    "list": "ps",
    "describe": "status",
}
"""Options, written with ``-`` in the place of ``_``, and commands of other programs."""
DECIDED_HERE = ("--standalone", "--node-rank", "--rdzv-", "--master-")
"""Beginnings of torchrun's options that the launcher decides."""
OF_NO_COMMAND = ("-h", "--help", "--version")
"""What may stand where a command stands."""
GONE = {
    "env": "node JOB on each node, where people or another program start the nodes",
    "init": "import SCRIPT -o job.yaml",
    "play": "import JOB.yaml -o job.yaml, which runs --on docker too",
    "release": "stop NAME, which ends a hold",
    "schema": "docs schema",
    "shell": "exec RUN --node N, which opens a terminal where no program is named",
}
"""Commands of earlier versions: what to type in their place."""


def find_habit(
    words: Sequence[str], takes_training: Sequence[str], commands: Collection[str]
) -> tuple[str, list[str]]:
    """What is wrong with words as torchrun or python takes them, and the words that were meant.

    Both are empty if nothing is wrong; what was meant is empty too if it is not known. ``words``
    are all before ``--``, and ``takes_training`` those of the ``commands`` that start scripts.
    """
    if words and (words[0] == "-m" or words[0].endswith(JOB_ENDINGS)):
        return f"{words[0]}: no command of the launcher", ["run", *words]
    if words and words[0].startswith("-") and words[0] not in OF_NO_COMMAND:
        what = f"{words[0]}: options stand behind the command"
        if len(words) == 1 and (near := closest(words[0], OF_NO_COMMAND)):
            return f"{words[0]}: no option of the launcher", [near]
        if at := next((n for n, word in enumerate(words) if word in commands), 0):
            return what, [words[at], *words[:at], *words[at + 1 :]]
        return what, ["run", *words] if any(x.endswith(JOB_ENDINGS) for x in words) else []
    if words and words[0] in takes_training:
        for at, (before, word) in enumerate(pairwise(words), 1):
            if word == "-m" or word.endswith(JOB_ENDINGS) or Path(word).is_dir():
                break
            if re.fullmatch(r"(.*/)?(python[0-9.]*|torchrun)", word) and not before.startswith("-"):
                what = f"{word}: a program, and no script or job file"
                return what, [*words[:at], *words[at + 1 :]]
    return "", []


def decided_here(words: Sequence[str]) -> list[str]:
    """Those of the words that are torchrun's and that the launcher decides."""
    return [
        word.partition("=")[0] for word in words if word.replace("_", "-").startswith(DECIDED_HERE)
    ]
