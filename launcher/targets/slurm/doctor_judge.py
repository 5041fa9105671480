"""Turns what Slurm's commands print into findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.targets.slurm.client import fix_of_refusal

PARTITION_FORMAT = "%P|%a|%l|%F|%G"
"""For ``sinfo``: name, state, time limit, nodes as ALLOCATED/IDLE/OTHER/TOTAL, and their GPUs."""
REASON_FORMAT = "%N|%T|%E"
"""For ``sinfo --list-reasons``: the reason comes last, as it may hold any character."""


def tell_partitions(lines: Iterable[str]) -> Iterator[Finding]:
    """A row for each line of ``sinfo`` with ``PARTITION_FORMAT``; ``*`` marks the default."""
    for line in lines:
        if line.count("|") != PARTITION_FORMAT.count("|"):
            continue
        name, state, limit, counts, gres = line.split("|")
        _, idle, other, total = counts.split("/")
        told = f"{state}, time limit {limit}, {idle} of {total} nodes idle"
        told += f", {other} down or drained" if other != "0" else ""
        told += f", {gres}" if gres != "(null)" else ""
        if state == "up":
            yield ok("partition", name, told)
        else:
            yield warning("partition", name, told, "--set slurm.partition=NAME, one that is up")


def tell_lost_nodes(lines: Iterable[str]) -> Iterator[Finding]:
    """A row for each reason why nodes take no jobs, in the words of an admin or of Slurm."""
    for line in lines:
        nodes, state, reason = line.split("|", 2)
        fix = f"scontrol show node {nodes}; an admin: scontrol update NodeName={nodes} State=RESUME"
        yield warning("node", nodes, f"{state}: {reason}", fix)


def judge_submission(words: str, *, accepted: bool) -> Finding:
    """What ``sbatch --test-only`` says of the very script, such as when it would start."""
    words = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    words = words.removeprefix("sbatch: ").removeprefix("error: ")
    if not accepted:
        return failed("start", "sbatch", words, fix_of_refusal(words))
    return ok("start", "sbatch", words or "accepts the job")
