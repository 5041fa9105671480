"""All rules, and what a line means by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from launcher.contract.reasons import Reason
from launcher.contract.worker_end import LEFT_EARLY, WorkerEnd, is_own_failure
from launcher.verdict.cause import Cause
from launcher.verdict.rules import (
    cluster,
    data,
    gpu,
    hangs,
    memory_and_disk,
    network,
    versions,
    workers,
)
from launcher.verdict.rules.rule import Finding, Weight, table
from launcher.verdict.scan import Line

_FAMILIES = (gpu, memory_and_disk, cluster, network, hangs, data, versions, workers)
RULES = tuple(rule for family in _FAMILIES for rule in table(family.MEANINGS))
"""Where several fit a line equally well, the first one."""
_WARNS = re.compile(r"\b\w*Warning: |^\[?W(?:\d{4})? |\bWARNING\b")


def judge_line(line: Line) -> Finding | None:
    """What a line means by the rules; None where it says nothing. Pure."""
    best: Finding | None = None
    for rule in RULES:
        if (best is None or rule.weight > best.weight) and (found := rule.search.search(line.text)):
            package = found.groupdict().get("package") or ""
            best = Finding(cause=rule.cause, weight=rule.weight, line=line, package=package)
    if best and not line.raised and _WARNS.search(line.text):
        # The program went on after it.
        return replace(best, weight=min(best.weight, Weight.SIGN))
    if (best is None or best.weight < Weight.LIKELY) and line.raised and is_own_failure(line.text):
        weight = Weight.SURE if line.is_own else Weight.LIKELY
        return Finding(cause=Cause.SCRIPT_ERROR, weight=weight, line=line)
    return best


def judge_lines(lines: Sequence[Line]) -> Iterator[Finding]:
    """What all lines mean, each by itself and beside those of other ranks. Pure."""
    yield from filter(None, map(judge_line, lines))
    yield from hangs.join_ranks(lines)
    yield from versions.find_differences(lines)
    yield from network.find_proxy(lines)


_OF_END = {
    "out-of-memory": (Cause.HOST_OUT_OF_MEMORY, Weight.ROOT),
    "disk-full": (Cause.DISK_FULL, Weight.ROOT),
    LEFT_EARLY: (Cause.EXITED_EARLY, Weight.SURE),
    "hang": (Cause.DEADLOCK, Weight.SIGN),
}
_OF_CODE = {
    -9: Cause.KILLED,
    -2: Cause.STOPPED_BY_USER,
    -15: Cause.KILLED,
    **dict.fromkeys((-4, -6, -7, -8, -11), Cause.CRASHED),
}
_OF_REASON = {
    Reason.NODE_LOST: (Cause.NODE_LOST, Weight.LIKELY),
    Reason.PREEMPTED: (Cause.PREEMPTED, Weight.LIKELY),
    Reason.STOP_REQUESTED: (Cause.STOPPED_BY_USER, Weight.ROOT),
    Reason.INTERRUPTED: (Cause.STOPPED_BY_USER, Weight.ROOT),
    Reason.DISK_FULL: (Cause.DISK_FULL, Weight.ROOT),
    Reason.GPU_BUSY: (Cause.GPU_BUSY, Weight.ROOT),
    Reason.OUT_OF_MEMORY: (Cause.HOST_OUT_OF_MEMORY, Weight.ROOT),
    Reason.TARGET_UNREACHABLE: (Cause.TARGET_UNREACHABLE, Weight.LIKELY),
    Reason.RENDEZVOUS_UNREACHABLE: (Cause.MASTER_UNREACHABLE, Weight.LIKELY),
    Reason.STORE_LOST: (Cause.NODE_LOST, Weight.SIGN),
    Reason.BAD_INPUT: (Cause.WRONG_ARGUMENT, Weight.LIKELY),
    Reason.KILLED: (Cause.KILLED, Weight.SIGN),
}
"""Of an end, an exit code or a run's reason, where no line says more."""


def judge_end(end: WorkerEnd) -> Finding:
    """What the first failed worker's end means by itself. Pure."""
    line = Line(
        file=end.log,
        number=0,
        text=end.exception,
        node=end.node_index,
        rank=end.rank,
        at=end.failed_at,
        raised=end.exit_code == 1 and ": " in end.exception,
    )
    # An exit code alone says little where its log was not read.
    weight = Weight.LIKELY if end.log else Weight.SIGN
    cause = _OF_CODE.get(end.exit_code, Cause.SCRIPT_ERROR)
    cause, weight = _OF_END.get(end.cause, (cause, weight))
    told = judge_line(line)
    if told and told.weight >= min(weight, Weight.LIKELY):
        return told if told.weight >= weight else replace(told, weight=weight)
    return Finding(cause=cause, weight=weight, line=line)


def judge_reason(reason: Reason | None, detail: str) -> Iterable[Finding]:
    """What the launcher's own word for a run's end means. Pure."""
    line = Line(file="outcome.json", number=0, text=detail or str(reason))
    told = judge_line(line) if detail else None
    if told and told.weight >= Weight.LIKELY:
        yield replace(told, weight=Weight.LIKELY)
    elif reason in _OF_REASON:
        cause, weight = _OF_REASON[reason]
        yield Finding(cause=cause, weight=weight, line=line)
