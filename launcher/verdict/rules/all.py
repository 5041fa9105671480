"""All rules, and what a line means by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from launcher.contract.reasons import Reason
from launcher.contract.worker_end import LEFT_EARLY, WorkerEnd, is_own_failure
from launcher.verdict.cause import FailureCause
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
from launcher.verdict.rules.rule import Meaning, Weight, table
from launcher.verdict.rules.standstill import Standing, judge_standing
from launcher.verdict.scan import LogLine

_FAMILIES = (gpu, memory_and_disk, cluster, network, hangs, data, versions, workers)
RULES = tuple(rule for family in _FAMILIES for rule in table(family.MEANINGS))
"""Where several fit a line equally well, the first one."""
OF_STARTERS = re.compile(r"ChildFailedError|SignalException|Process(?:Exited|Raised)Exception")
"""Exceptions by which a starter tells of its workers'."""
_WARNS = re.compile(r"\b\w*Warning: |^\[?W\d* |NCCL INFO|\bWARNING\b")


def judge_line(line: LogLine) -> Meaning | None:
    """What a line means by the rules; None where it says nothing. Pure."""
    best: Meaning | None = None
    for rule in RULES:
        if (best is None or rule.weight > best.weight) and (found := rule.search.search(line.text)):
            named = found.groupdict()
            node = int(named["node"]) if named.get("node") else line.node
            best = Meaning(
                cause=rule.cause,
                weight=rule.weight,
                line=replace(line, node=node),
                package=named.get("package") or "",
                rank=int(named["rank"]) if named.get("rank") else None,
            )
    if best and not line.raised and _WARNS.search(line.text):
        # The program went on after it.
        return replace(best, weight=min(best.weight, Weight.SIGN))
    if (best is None or best.weight < Weight.LIKELY) and _is_own(line):
        weight = Weight.SURE if line.is_own else Weight.LIKELY
        return Meaning(cause=FailureCause.SCRIPT_ERROR, weight=weight, line=line)
    return best


def _is_own(line: LogLine) -> bool:
    return line.raised and is_own_failure(line.text) and not OF_STARTERS.search(line.text)


def judge_lines(lines: Sequence[LogLine], standing: Sequence[Standing]) -> Iterator[Meaning]:
    """What all lines mean, each by itself and beside those of other ranks. Pure."""
    yield from judge_standing(standing)
    yield from filter(None, map(judge_line, lines))
    yield from hangs.join_ranks(lines)
    yield from versions.find_differences(lines)
    yield from network.find_proxy(lines)
    yield from network.find_name(lines)


_OF_END = {
    "out-of-memory": (FailureCause.HOST_OUT_OF_MEMORY, Weight.ROOT),
    "disk-full": (FailureCause.DISK_FULL, Weight.ROOT),
    LEFT_EARLY: (FailureCause.EXITED_EARLY, Weight.SURE),
    "hang": (FailureCause.DEADLOCK, Weight.SIGN),
}
_OF_CODE = {
    -9: FailureCause.KILLED,
    -2: FailureCause.STOPPED_BY_USER,
    -15: FailureCause.KILLED,
    **dict.fromkeys((-4, -6, -7, -8, -11), FailureCause.CRASHED),
}
_OF_REASON = {
    Reason.NODE_LOST: (FailureCause.NODE_LOST, Weight.LIKELY),
    Reason.PREEMPTED: (FailureCause.PREEMPTED, Weight.LIKELY),
    Reason.STOP_REQUESTED: (FailureCause.STOPPED_BY_USER, Weight.LIKELY),
    Reason.INTERRUPTED: (FailureCause.STOPPED_BY_USER, Weight.LIKELY),
    Reason.DISK_FULL: (FailureCause.DISK_FULL, Weight.ROOT),
    Reason.GPU_BUSY: (FailureCause.GPU_BUSY, Weight.ROOT),
    Reason.OUT_OF_MEMORY: (FailureCause.HOST_OUT_OF_MEMORY, Weight.ROOT),
    Reason.TARGET_UNREACHABLE: (FailureCause.TARGET_UNREACHABLE, Weight.LIKELY),
    Reason.RENDEZVOUS_UNREACHABLE: (FailureCause.MASTER_UNREACHABLE, Weight.LIKELY),
    Reason.STORE_LOST: (FailureCause.NODE_LOST, Weight.SIGN),
    Reason.BAD_INPUT: (FailureCause.WRONG_ARGUMENT, Weight.LIKELY),
    Reason.KILLED: (FailureCause.KILLED, Weight.SIGN),
}
"""Of an end, an exit code or a run's reason, where no line says more."""


def judge_end(end: WorkerEnd) -> Meaning:
    """What the first failed worker's end means by itself. Pure."""
    line = LogLine(
        file=end.log,
        number=0,
        text=end.exception,
        node=end.node_index,
        rank=end.rank,
        at=end.failed_at,
        raised=end.exit_code in (1, -15) and ": " in end.exception,
    )
    # An exit code alone says little where its log was not read.
    # SIGABRT is how C++ ends a process, whatever the reason is.
    weight = Weight.LIKELY if end.log and end.exit_code != -6 else Weight.SIGN
    cause = _OF_CODE.get(end.exit_code, FailureCause.SCRIPT_ERROR)
    cause, weight = _OF_END.get(end.cause, (cause, weight))
    told = judge_line(line)
    if told and (end.is_collateral or told.weight >= min(weight, Weight.LIKELY)):
        is_weak = told.weight < weight and not end.is_collateral
        return replace(told, weight=weight) if is_weak else told
    return Meaning(cause=cause, weight=weight, line=line)


_NODE = re.compile(r"\bnode (?P<node>\d+)\b|^\S+-(?P<pod>\d+)-\w{5}: ")
"""How a detail names a node, or its pod."""


def judge_reason(reason: Reason | None, detail: str) -> Iterable[Meaning]:
    """What the launcher's own word for a run's end means. Pure."""
    node = _NODE.search(detail)
    number = int(node["node"] or node["pod"]) if node else None
    line = LogLine(file="outcome.json", number=0, text=detail or str(reason), node=number)
    told = judge_line(line) if detail else None
    if told and told.weight >= Weight.LIKELY:
        yield replace(told, weight=Weight.LIKELY)
    elif reason in _OF_REASON:
        cause, weight = _OF_REASON[reason]
        yield Meaning(cause=cause, weight=weight, line=line)
