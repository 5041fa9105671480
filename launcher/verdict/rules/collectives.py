"""Collectives that do not match, and what NCCL, gloo and their watchdogs say of a hang."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.contract.causes import Cause
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, SURE, Meaning, table

_DIFFER = r"Detected mismatch between collectives on ranks"
RULES = table(
    r"""
missing-collective sure
  {differ}.*SequenceNumber=(\d+)\b(?=.*SequenceNumber=)(?!.*SequenceNumber=\1\b)
  ranks? \[?(?P<rank>\d+)[\d, ]*\]? failed to pass monitoredBarrier
mismatched-collective sure
  {differ}(?!.*OpType=(\w+),.*OpType=\1\b)
  Mismatched collective detected(?:.*around rank (?P<rank>\d+))?
  ranks? .* (?:is|are) in different collectives|disagreement between rank\d+ and rank\d+
  differs? across ranks
shape-mismatch-in-collective sure
  ProcessGroup\w+::\w+: invalid tensor (?:size|type)|DDP expects same model across all ranks
  when verifying shape tensors|params? .*in process \d+ .*mismatch
  appears not to match (?:sizes|strides|shape) of the same param in process
shape-mismatch-in-collective likely
  {differ}.*OpType=(\w+),.*OpType=\1\b
  enforce fail at .*nbytes|sizes differ in \w+|NCCL WARN .*mismatch.*(?:count|size|bytes)
  message truncated|op\.preamble\.length
missing-collective likely
  ranks? (?P<rank>\d+)\S* ha(?:s|ve) not entered \w+ \d+
  errors while waiting for send/recv from rank (?P<rank>\d+)
  has left out \w+ \d+|FlightRecorder.*timeout
  heartbeat monitor timed out|in monitoredBarrier after|Collective .*(?:timed out|timeout)
  application timeout caused pair clos|timed out waiting \d+ms for (?:recv|send) operation
deadlock likely
  watchdog (?:got stuck for|hang\b)
nccl-error likely
  NCCL error(?: \d+| in)?:(?!.*remote ?(?:pro|err))
  ncclInvalidUsage
  nccl(?:System|Internal)Error|NCCL WARN (?!.*(?:NCCL_|MTU|Using|libibv|by (?:remote )?peer))
straggler likely
  ranks? (?P<rank>\d+)[-\d, ]* (?:is|are) (?:a straggler|slow)
  straggler ?detection\b(?:.*\branks?\W+(?P<rank>\d+))?
  HW (?:Thermal )?Slowdown *: Active|thermal throttling
""",
    differ=_DIFFER,
)

_TIMEOUT = re.compile(
    r"(?:PG (?P<group>.*) )?[Rr]ank (?P<rank>\d+)\].*caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+), NumelIn=(?P<size>\d+)"
)
_LAST = re.compile(r"[Rr]ank (?P<rank>\d+)\].*[Ll]ast enqueued (?:NCCL )?work: (?P<number>-?\d+)")

_DIFFERS = {
    "group": None,
    "number": None,
    "kind": Cause.MISMATCHED_COLLECTIVE,
    "size": Cause.SHAPE_MISMATCH_IN_COLLECTIVE,
}
"""The cause for each field; the first field in which the watchdogs' messages differ counts."""
_APART = re.compile(r"op\.preamble\.length|enforce fail at .*nbytes|Timed out waiting \d+ms for ")
"""What gloo says when data belongs to another collective, or does not come."""
_OF_GLOO = re.compile(r"\bgloo/|closed by peer")


def join_places(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A rank that got data of an unexpected size, or none, from a rank at another line of code."""
    odd = next((x for x in lines if x.frame and _APART.search(x.text)), None)
    others = (x for x in lines if odd and x.rank != odd.rank and _OF_GLOO.search(x.text))
    if odd and (other := next((x for x in others if x.frame not in ("", odd.frame)), None)):
        places = " and ".join(f"{x.frame} (rank {x.rank})" for x in (odd, other))
        line = replace(odd, text=f"two ranks are in different collectives: at {places}")
        # If the rank waited in vain, nobody can tell which of the two is at the wrong line.
        weight = LIKELY if "Timed out" in odd.text else SURE
        yield Meaning(cause=Cause.MISMATCHED_COLLECTIVE, weight=weight, line=line)


def join_ranks(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """What the ranks' watchdogs say together: who is behind, or elsewhere. Pure."""
    timeouts: dict[int, tuple[LogLine, re.Match[str]]] = {}
    last: dict[int, tuple[LogLine, int]] = {}
    for line in lines:
        if match := _TIMEOUT.search(line.text):
            timeouts.setdefault(int(match["rank"]), (line, match))
        if match := _LAST.search(line.text):
            last.setdefault(int(match["rank"]), (line, int(match["number"])))
    awaited = max((int(match["number"]) for _, match in timeouts.values()), default=-1)
    behind = [(rank, line) for rank, (line, number) in last.items() if number < awaited]
    for what, cause in _DIFFERS.items():
        values = Counter(match[what] for _, match in timeouts.values())
        if len(values) < 2:
            continue
        odd = min(values, key=lambda value: values[value])
        rank = min(rank for rank, (_, match) in timeouts.items() if match[what] == odd)
        if what == "number" and 2 * values[odd] < len(timeouts) and int(odd) < awaited:
            behind.append((rank, timeouts[rank][0]))
        elif cause:
            yield Meaning(cause=cause, weight=SURE, line=replace(timeouts[rank][0], rank=rank))
        break  # Each group counts by itself: across groups, the other fields say nothing.
    for rank, line in behind[:1]:  # It never came to the collective that others waited in.
        cause = Cause.MISSING_COLLECTIVE
        yield Meaning(cause=cause, weight=SURE, line=replace(line, rank=rank))
