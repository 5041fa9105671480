"""What a line, a worker's end, an exit code and the run's own cause mean, by all rules; a warning
counts less than an error.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import (
    ENDED_BY_AGENT,
    WorkerEnd,
    cause_of_ending,
    is_own_failure,
    last_of,
)
from launcher.contract.errors import name_ending
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules import cluster, collectives, gpu, memory_and_disk, network, script
from launcher.verdict.rules.rule import FOLLOWS, LIKELY, ROOT, SIGN, SURE, Meaning

RULES = tuple(
    rule
    for family in (gpu, memory_and_disk, cluster, network, collectives, script)
    for rule in family.RULES
)
"""If several rules of equal weight match a line, the first one counts."""
OF_STARTERS = re.compile(r"ChildFailedError|SignalException|Process(?:Exited|Raised)Exception")
"""Exceptions by which a starter reports that its workers failed."""
_WARNS = re.compile(r"\b\w*Warning: |^\[?W\d* |NCCL INFO|\bWARNING\b|: W tensorflow")


_ERRNO = re.compile(r"\berrno[ :=]+(\d+)\b|\b(E[A-Z]{3,})\b", re.IGNORECASE)


def _name_errors(text: str) -> str:
    """The system's errors that a line gives by number or name: `` <ENOSPC>``. Pure."""
    names = (errno.errorcode.get(int(match[1] or 0), match[2]) for match in _ERRNO.finditer(text))
    return "".join(f" <{name}>" for name in names if name and hasattr(errno, name.upper()))


def judge_line(line: LogLine) -> Meaning | None:
    """What a line means by the rules; None where it says nothing. Pure."""
    meanings: list[Meaning] = []
    text = f"{line.text}{_name_errors(line.text)}".lower()
    # A warning ends nothing, and an exception in a thread ends only that thread.
    most = SIGN if line.is_side or (_WARNS.search(line.text) and not line.raised) else ROOT
    for rule in RULES:
        if match := rule.search.search(text):
            named = match.groupdict()
            node = int(named["node"]) if named.get("node") else line.node
            meanings.append(
                Meaning(
                    cause=rule.cause,
                    weight=min(rule.weight, most, ROOT if line.rank is None else rule.most),
                    line=replace(line, node=node),
                    package=line.text[slice(*match.span("package"))] if "package" in named else "",
                    rank=int(named["rank"]) if named.get("rank") else None,
                    fix=rule.fix,
                )
            )
    is_own = line.raised and is_own_failure(line.text) and not OF_STARTERS.search(line.text)
    if not meanings:
        weight = SIGN if line.is_side else SURE if line.is_own else LIKELY
        raised = Meaning(cause=Cause.SCRIPT_ERROR, weight=weight, line=line)
        return raised if is_own else None
    best = max(meanings, key=lambda m: m.weight)
    also = frozenset(m.cause for m in meanings if m.weight >= LIKELY) - {
        best.cause,
        *FOLLOWS,
    }
    # What a script raises is more than a sign.
    least = LIKELY if is_own and not line.is_side else best.weight
    return replace(best, weight=max(best.weight, least), also=also)


def judge_lines(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """What all lines mean, each by itself and together with those of other ranks. Pure."""
    # Differences come before what they may lead to, such as other sizes in a collective.
    yield from script.find_differences(lines)
    yield from filter(None, map(judge_line, lines))
    yield from collectives.join_ranks(lines)
    yield from collectives.join_places(lines)
    yield from network.find_explained(lines)
    yield from network.find_name(lines)


_OF_END = {
    Cause.OUT_OF_MEMORY: (Cause.HOST_OUT_OF_MEMORY, ROOT),
    Cause.DISK_FULL: (Cause.DISK_FULL, SURE),
    Cause.EXITED_EARLY: (Cause.EXITED_EARLY, SURE),
    Cause.HANG: (Cause.DEADLOCK, SIGN),
}
_OF_RUN = {
    Cause.NODE_LOST: (Cause.NODE_LOST, LIKELY),
    Cause.PREEMPTED: (Cause.PREEMPTED, LIKELY),
    Cause.STOP_REQUESTED: (Cause.STOPPED_BY_USER, LIKELY),
    Cause.INTERRUPTED: (Cause.STOPPED_BY_USER, SURE),
    Cause.LAUNCHER_LOST: (Cause.LAUNCHER_LOST, LIKELY),
    Cause.DISK_FULL: (Cause.DISK_FULL, ROOT),
    Cause.GPU_BUSY: (Cause.GPU_BUSY, ROOT),
    Cause.OUT_OF_MEMORY: (Cause.HOST_OUT_OF_MEMORY, ROOT),
    Cause.TARGET_UNREACHABLE: (Cause.TARGET_UNREACHABLE, LIKELY),
    Cause.RENDEZVOUS_UNREACHABLE: (Cause.MASTER_UNREACHABLE, LIKELY),
    Cause.STORE_LOST: (Cause.NODE_LOST, SIGN),
    Cause.BAD_INPUT: (Cause.WRONG_ARGUMENT, LIKELY),
    Cause.KILLED: (Cause.KILLED, SIGN),
}
"""These tables: what an end, an exit code or a run's cause means if no line says more."""
_OF_SIGNAL: dict[int, str] = {
    signal.SIGALRM: "look for signal.alarm() or setitimer() in the script and its libraries",
    signal.SIGXCPU: "ulimit -t there: raise it, or ulimit -t unlimited",
}
"""The fix for a worker that a clock of its own or a limit has ended, and nobody else."""


def judge_end(end: WorkerEnd) -> Meaning:
    """What the first failed worker's end means by itself. Pure."""
    line = LogLine(
        file=end.log,
        text=end.exception,
        node=end.node_index,
        rank=end.rank,
        at=end.failed_at,
        raised=end.exit_code in (1, -15) and ": " in end.exception,
    )
    if "frame #" in end.exception:  # of C++, which says nothing
        line = replace(line, text=name_ending(end.exit_code))
    if end.exit_code > 0 and end.exception == name_ending(end.exit_code) and last_of(end.log_tail):
        line = replace(line, text=f"{end.exception}: {last_of(end.log_tail).strip()}")
    # An exit code alone says little if the worker's log was not read.
    # SIGABRT is how C++ ends a process, whatever the reason is.
    weight = LIKELY if end.log and end.exit_code != -6 else SIGN
    if end.exception == ENDED_BY_AGENT:  # which only followed what ended the node
        weight = SIGN
    by_ctrl_c = end.exit_code == -signal.SIGINT
    # By its code, as records of older runs have no finer cause of an end than "signal". A script
    # that answers SIGTERM may end with a code of its own.
    code = -signal.SIGTERM if end.cause is Cause.TERMINATED else end.exit_code
    cause = Cause.STOPPED_BY_USER if by_ctrl_c else cause_of_ending(code)
    cause, weight = _OF_END.get(end.cause, (cause, weight))
    by_line, own_fix = judge_line(line), _OF_SIGNAL.get(-end.exit_code, "")
    if by_line and (end.is_collateral or by_line.weight >= min(weight, LIKELY)):
        is_weak = by_line.weight < weight and not end.is_collateral
        return replace(by_line, weight=weight) if is_weak else by_line
    return Meaning(cause=cause, weight=weight, line=line, fix=own_fix)


_NODE = re.compile(r"\bnode (?P<node>\d+)\b|^\S+-(?P<pod>\d+)-\w{5}(?:[:;] |$)")
"""How a detail names a node, or its pod."""
_OF_RANK = re.compile(r"\brank \d")
"""Marks a detail that repeats what a worker said."""


def judge_run_cause(ended: Cause | None, detail: str, named: int | None) -> Iterable[Meaning]:
    """What the launcher's own word for a run's end means; ``named``: the node of its host. Pure."""
    node = _NODE.search(detail)
    number = int(node["node"] or node["pod"]) if node else named
    # The launcher itself got the Ctrl-C.
    is_seen = ended is Cause.INTERRUPTED
    line = LogLine(
        file=protocol.OUTCOME_FILE, text=detail or str(ended), node=number, joined=is_seen
    )
    by_detail = judge_line(line) if detail else None
    if by_detail and by_detail.weight >= LIKELY:
        is_engines = by_detail.weight is ROOT and not _OF_RANK.search(detail)
        yield by_detail if is_engines else replace(by_detail, weight=LIKELY)
    elif ended in _OF_RUN:
        cause, weight = _OF_RUN[ended]
        yield Meaning(cause=cause, weight=weight, line=line)
