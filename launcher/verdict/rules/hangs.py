"""Collectives that do not match, and what NCCL, gloo and their watchdogs say of a hang."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, SURE, Meaning, Meanings
from launcher.verdict.scan import LogLine

MEANINGS: Meanings = {
    (FailureCause.SHAPE_MISMATCH_IN_COLLECTIVE, SURE): (
        r"ProcessGroupGloo::\w+: invalid tensor (?:size|type)",
        r"appears not to match (?:sizes|strides|shape) of the same param in process",
    ),
    (FailureCause.SHAPE_MISMATCH_IN_COLLECTIVE, LIKELY): (
        # A rank that has left one out is in the next of the same kind, which has another size.
        r"op\.preamble\.length <= op\.nbytes|enforce fail at .*nbytes",
        r"Detected mismatch between collectives .*OpType=(\w+),.*OpType=\1\b|sizes differ in \w+",
        r"Received data size doesn't match expected size|[Mm]essage truncated",
        r"NCCL WARN .*(?:mismatch|Mismatch).*(?:count|size|bytes)",
        r"DDP expects same model across all ranks|params? .*in process \d+ .*mismatch",
    ),
    (FailureCause.MISMATCHED_COLLECTIVE, SURE): (
        r"Detected mismatch between collectives on ranks(?!.*OpType=(\w+),.*OpType=\1\b)",
        r"Mismatched collective detected",
        r"ranks? .* (?:is|are) in different collectives",
    ),
    (FailureCause.MISSING_COLLECTIVE, SURE): (
        r"[Rr]anks? \[?(?P<rank>\d+)[\d, ]*\]? failed to pass monitoredBarrier",
        r"Expected to have finished reduction in the prior iteration",
    ),
    (FailureCause.MISSING_COLLECTIVE, LIKELY): (
        # It may compute, or wait for something else: its stack tells.
        r"[Rr]anks? (?P<rank>\d+)\S* ha(?:s|ve) not entered \w+ \d+",
        r"Watchdog caught collective operation timeout",
        r"[Tt]imed out waiting \d+ms for (?:recv|send) operation",
        r"Some NCCL operations have failed or timed out",
        r"Collective .*(?:timed out|timeout)|FlightRecorder.*[Tt]imeout",
        r"[Hh]eartbeat monitor timed out",
    ),
    (FailureCause.DEADLOCK, LIKELY): (r"watchdog got stuck for|Could not acquire GIL within",),
    (FailureCause.NCCL_ERROR, LIKELY): (
        r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage",
        r"unhandled (?:system|cuda) error \(run with NCCL_DEBUG",
        r"NCCL error(?: in)?:(?!.*ncclRemote)",
        r"NCCL WARN (?!.*(?:NCCL_|MTU|Using))|NET/Plugin.*(?:[Ff]ailed|[Ee]rror)|NET/OFI.*[Ee]rror",
    ),
    (FailureCause.STRAGGLER, LIKELY): (
        r"[Rr]ank \d+ is (?:a straggler|slow)|straggler (?:detected|rank)|slow rank",
        r"StragglerDetection|SM clock .*below|HW (?:Thermal )?Slowdown *: Active",
        r"[Cc]lock throttle|thermal throttling",
    ),
}

_TIMEOUT = re.compile(
    r"[Rr]ank (?P<rank>\d+)\].*caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+), NumelIn=(?P<size>\d+)"
)
_LAST = re.compile(r"[Rr]ank (?P<rank>\d+)\].*last enqueued (?:NCCL )?work: (?P<number>-?\d+)")


def join_ranks(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """What the ranks' watchdogs say together: who is behind, or elsewhere. Pure."""
    seen: dict[int, tuple[LogLine, re.Match[str]]] = {}
    last: dict[int, tuple[LogLine, int]] = {}
    for line in lines:
        if found := _TIMEOUT.search(line.text):
            seen.setdefault(int(found["rank"]), (line, found))
        if found := _LAST.search(line.text):
            last.setdefault(int(found["rank"]), (line, int(found["number"])))
    if len({found["number"] for _, found in seen.values()}) == 1:
        for what, cause in (
            ("kind", FailureCause.MISMATCHED_COLLECTIVE),
            ("size", FailureCause.SHAPE_MISMATCH_IN_COLLECTIVE),
        ):
            told = Counter(found[what] for _, found in seen.values())
            if len(told) > 1 and not (
                what == "size" and len({f["kind"] for _, f in seen.values()}) > 1
            ):
                odd = min(told, key=lambda one: told[one])
                rank = min(r for r, (_, found) in seen.items() if found[what] == odd)
                line = replace(seen[rank][0], rank=rank)
                yield Meaning(cause=cause, weight=SURE, line=line)
    awaited = max((int(found["number"]) for _, found in seen.values()), default=-1)
    behind = [rank for rank, (_, number) in last.items() if number < awaited]
    if behind:  # It never came to the one that others have waited for.
        line = replace(last[behind[0]][0], rank=behind[0])
        yield Meaning(cause=FailureCause.MISSING_COLLECTIVE, weight=SURE, line=line)
