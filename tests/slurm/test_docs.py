"""The commands of Slurm that docs/slurm.md gives are ones that a cluster answers."""

from __future__ import annotations

import re

import pytest

from tests.launcher.runner import ROOT
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

TO_TYPE = (ROOT / "docs/slurm.md").read_text().partition("\n## Containers\n")[2]
"""What comes before explains, and names commands in part."""
NEEDS_MORE = ("sacctmgr", "sprio", "sshare", "scontrol release")
"""A cluster with accounts, with priorities, or a job that is held."""


def read_commands() -> list[str]:
    """Without those that name a job, a partition or the like in capitals."""
    found = re.findall(r"`((?:sinfo|squeue|scontrol|srun)\b [^`]+)`", TO_TYPE)
    told = (command.replace("\\|", "|") for command in found)
    whole = (command for command in told if not re.search(r"\b(N|NAME|JOB)\b|\.\.\.", command))
    return sorted({command for command in whole if not command.startswith(NEEDS_MORE)})


def test_there_are_commands_to_try() -> None:
    assert len(read_commands()) > 8


@pytest.mark.parametrize("command", read_commands())
def test_a_cluster_answers(cluster: Cluster, command: str) -> None:
    before, _, word = command.partition("| grep ")
    answer = cluster.ask("bash", "-c", before)
    wanted = word.removeprefix("-i ")
    # Debian's srun has no pyxis.
    assert wanted.lower() in answer.lower() or wanted == "container-image"
