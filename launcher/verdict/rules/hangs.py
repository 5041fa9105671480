"""Collectives that do not match, and what NCCL, gloo and their watchdogs say of a hang."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import Cause
from launcher.verdict.rules.rule import LIKELY, SURE, Finding, Meanings, Weight
from launcher.verdict.scan import Line

MEANINGS: Meanings = {
    (Cause.SHAPE_MISMATCH_IN_COLLECTIVE, SURE): (
        r"op\.preamble\.length <= op\.nbytes|enforce fail at .*nbytes",
        r"Detected mismatch between collectives .*OpType=(\w+),.*OpType=\1\b|sizes differ in \w+",
        r"appears not to match (?:sizes|strides|shape) of the same param in process",
        r"Received data size doesn't match expected size|[Mm]essage truncated",
        r"NCCL WARN .*(?:mismatch|Mismatch).*(?:count|size|bytes)",
    ),
    (Cause.SHAPE_MISMATCH_IN_COLLECTIVE, LIKELY): (
        r"DDP expects same model across all ranks|params? .*in process \d+ .*mismatch",
    ),
    (Cause.MISMATCHED_COLLECTIVE, SURE): (
        r"Detected mismatch between collectives on ranks|Mismatched collective detected",
        r"ranks? .* (?:is|are) in different collectives",
    ),
    (Cause.MISSING_COLLECTIVE, SURE): (
        r"has not entered \w+ \d+",
        r"[Rr]anks? \[?[\d, ]+\]? failed to pass monitoredBarrier",
        r"Expected to have finished reduction in the prior iteration",
    ),
    (Cause.MISSING_COLLECTIVE, LIKELY): (
        r"Watchdog caught collective operation timeout",
        r"[Tt]imed out waiting \d+ms for (?:recv|send) operation",
        r"Some NCCL operations have failed or timed out",
        r"Collective .*(?:timed out|timeout)|FlightRecorder.*[Tt]imeout",
        r"[Hh]eartbeat monitor timed out",
    ),
    (Cause.NCCL_ERROR, LIKELY): (
        r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage",
        r"unhandled (?:system|cuda) error \(run with NCCL_DEBUG",
        r"NCCL error(?: in)?:(?!.*ncclRemote)",
        r"NCCL WARN (?!.*(?:NCCL_|MTU|Using))|NET/Plugin.*(?:[Ff]ailed|[Ee]rror)|NET/OFI.*[Ee]rror",
    ),
    (Cause.STRAGGLER, LIKELY): (
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


def join_ranks(lines: Sequence[Line]) -> Iterator[Finding]:
    """What the ranks' watchdogs say together: who is behind, or elsewhere. Pure."""
    seen: dict[int, tuple[Line, re.Match[str]]] = {}
    last: dict[int, tuple[Line, int]] = {}
    for line in lines:
        if found := _TIMEOUT.search(line.text):
            seen.setdefault(int(found["rank"]), (line, found))
        if found := _LAST.search(line.text):
            last.setdefault(int(found["rank"]), (line, int(found["number"])))
    if len({found["number"] for _, found in seen.values()}) == 1:
        for what, cause in (
            ("kind", Cause.MISMATCHED_COLLECTIVE),
            ("size", Cause.SHAPE_MISMATCH_IN_COLLECTIVE),
        ):
            told = Counter(found[what] for _, found in seen.values())
            if len(told) > 1 and not (
                what == "size" and len({f["kind"] for _, f in seen.values()}) > 1
            ):
                odd = min(told, key=lambda one: told[one])
                rank = min(r for r, (_, found) in seen.items() if found[what] == odd)
                line = replace(seen[rank][0], rank=rank)
                yield Finding(cause=cause, weight=Weight.SURE, line=line)
    if last and min(n for _, n in last.values()) < max(n for _, n in last.values()):
        rank = min(last, key=lambda r: last[r][1])
        line = replace(last[rank][0], rank=rank)
        yield Finding(cause=Cause.MISSING_COLLECTIVE, weight=Weight.SURE, line=line)
