"""Turns what Slurm's commands print into findings. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from launcher.contract import typed
from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.targets.slurm.client import fix_of_refusal
from launcher.targets.slurm.plan import parse_time_s

PARTITION_FORMAT = "%P|%a|%l|%F|%G"
"""For ``sinfo``: name, state, time limit, nodes as ALLOCATED/IDLE/OTHER/TOTAL, and their GPUs."""
REASON_FORMAT = "%N|%T|%E"
"""For ``sinfo --list-reasons``: the reason comes last, as it may hold any character."""
SHARED_TYPES = re.compile(
    r"nfs4?|lustre|gpfs|beegfs\w*|(fuse\.)?(ceph|glusterfs|quobyte|mfs|daos|dfuse|juicefs|sshfs)|"
    r"panfs|afs|cifs|smb3|wekafs|pvfs2|orangefs|gfs2|ocfs2|virtiofs|9p|autofs"
)


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


# -- time to stop ---------------------------------------------------------------------------------


def parse_config(text: str) -> dict[str, str]:
    """Of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def judge_stop(
    config: Mapping[str, str], shown: str, partition: str, grace_s: float
) -> Iterator[Finding]:
    """How long the training has for a checkpoint where Slurm itself ends the job.

    ``shown`` is what ``scontrol --oneliner show partition`` prints. ``partition`` names those of
    the job, empty for the default one.
    """
    each = [dict(word.partition("=")[::2] for word in line.split()) for line in shown.splitlines()]
    key, values = ("PartitionName", partition.split(",")) if partition else ("Default", ["YES"])
    used = [shown for shown in each if shown.get(key) in values]
    preempts = config.get("PreemptType", "preempt/none") != "preempt/none"
    modes = {p.get("PreemptMode", "OFF") for p in used} - {"OFF"} if preempts else set()
    left_s = _seconds_of(config.get("KillWait", "30 sec"))
    told = f"KillWait is {left_s:g} s"
    if modes:
        given_s = min(_seconds_of(p.get("GraceTime", "0")) for p in used)
        left_s += given_s
        told += f", preemption {', '.join(sorted(modes))} with GraceTime {given_s:g} s"
    told += f"; stop_grace_s is {grace_s:g}"
    if left_s < grace_s:
        fix = f"--set stop_grace_s={left_s:g}, or more frequent checkpoints"
        yield warning("time to stop", "cluster", told, fix)
    else:
        yield ok("time to stop", "cluster", told)
    if "CANCEL" in modes:
        found = "a preempted job is cancelled, not requeued"
        fix = f"a partition or QOS that requeues; else {typed.command('run', '--resume', 'RUN')}"
        yield warning("preemption", "partition", found, fix)


def _seconds_of(text: str) -> float:
    """Of a time as Slurm prints it: ``8:00:00``, ``30 sec``, ``UNLIMITED``."""
    if re.fullmatch(r"(\d+-)?\d+(:\d\d){1,2}", text):
        return parse_time_s(text) or 0
    number = text.partition(" ")[0]
    return int(number) if number.isdigit() else math.inf


# -- the shared folder, a start -------------------------------------------------------------------


def judge_folder(folder: str, told: str) -> Finding:
    """The folder of the run folders; ``told`` are the type and the source of its file system."""
    kind, _, source = told.strip().partition(" ")
    where = f"on {kind} ({source.strip()})"
    if SHARED_TYPES.fullmatch(kind):
        return ok("run folder", folder, f"{where}, which other machines can see")
    fix = "--runs FOLDER on the cluster's shared file system; --test-job asks a node"
    return warning("run folder", folder, f"{where}, which other machines may not see", fix)


def judge_submission(words: str, *, accepted: bool) -> Finding:
    """What ``sbatch --test-only`` says of the very script, such as when it would start."""
    words = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    words = words.removeprefix("sbatch: ").removeprefix("error: ")
    if not accepted:
        return failed("start", "sbatch", words, fix_of_refusal(words))
    return ok("start", "sbatch", words or "accepts the job")
