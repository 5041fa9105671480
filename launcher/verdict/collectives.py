"""The flight recorders of all ranks, joined: which rank is missing in which collective. Pure.

torch counts the collectives of each process group from 1, on all of its ranks alike: the first
number at which they differ is where it went wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launcher.verdict.stacks import name_ranks

Kind = Literal["different", "sizes", "missing"]
WAITS_S = 1.0
"""A shorter wait is nothing to tell: ranks do not come at the same instant."""
SAME_SIZES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "_all_gather_base")
"""Collectives whose inputs must be of one size on all ranks."""
DEFAULT = "0"
"""What torch calls the group of all ranks."""
_BYTES = {"Float": 4, "Int": 4, "Double": 8, "Long": 8, "Half": 2, "BFloat16": 2, "Short": 2}
_UNNAMED = ("", "undefined", "default_pg")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective of one rank: the ``seq``-th of its group, as torch counts them.

    ``began_at`` is in seconds since the epoch; ``is_over``: torch knows that it has ended.
    """

    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    began_at: float
    is_over: bool


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """What one rank remembers of one process group; ``members`` are empty where nobody says."""

    rank: int
    backend: str
    group: str
    description: str
    members: tuple[int, ...]
    calls: Mapping[int, Call]

    @property
    def last(self) -> int:
        """The number of the newest collective that it has entered."""
        return max(self.calls, default=0)

    @property
    def waiting(self) -> Call | None:
        """The oldest one in which it still is."""
        open_ones = (call for call in self.calls.values() if not call.is_over)
        return min(open_ones, key=lambda call: call.seq, default=None)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One thing that is wrong, in a sentence; ``ranks`` are those that differ from the others.

    ``waited_s`` is how long the first of the others has been waiting for them.
    """

    kind: Kind
    text: str
    ranks: tuple[int, ...]
    group: str
    seq: int
    op: str
    waited_s: float = 0.0


def parse_recorder(rank: int, data: Mapping[str, Any]) -> tuple[RankGroup, ...]:
    """What a rank's recorder tells of each of its groups; empty for anything that is no trace."""
    found: dict[tuple[str, str], tuple[str, dict[int, Call]]] = {}
    for entry in _list(data.get("entries")):
        try:
            if entry.get("is_p2p"):
                continue
            backend, _, op = str(entry["profiling_name"]).rpartition(":")
            group, description = (str(word) for word in entry["process_group"])
            call = _parse_call(entry, op)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        found.setdefault((backend, group), (description, {}))[1][call.seq] = call
    return tuple(
        RankGroup(
            rank=rank,
            backend=backend,
            group=group,
            description="" if description in _UNNAMED else description,
            members=_members(data, group),
            calls=calls,
        )
        for (backend, group), (description, calls) in found.items()
    )


def _parse_call(entry: Mapping[str, Any], op: str) -> Call:
    return Call(
        seq=int(entry["collective_seq_id"]),
        op=op,
        sizes=tuple(tuple(int(n) for n in shape) for shape in entry["input_sizes"]),
        dtypes=tuple(map(str, entry.get("input_dtypes", ()))),
        began_at=int(entry["time_created_ns"]) / 1e9,
        is_over=bool(entry.get("retired")) or entry.get("state") == "completed",
    )


def _members(data: Mapping[str, Any], group: str) -> tuple[int, ...]:
    try:
        listed = data["pg_config"][group]["ranks"]
        ranks = json.loads(listed) if isinstance(listed, str) else listed
        return tuple(int(rank) for rank in ranks)
    except (KeyError, TypeError, ValueError):
        return ()


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def join_recorders(
    traces: Mapping[int, Mapping[str, Any]], now: float, *, waits_s: float = WAITS_S
) -> tuple[Mismatch, ...]:
    """What is wrong between the ranks, worst first; empty where nothing is.

    ``traces`` are what the recorders of these ranks wrote, and ``now`` is when, in seconds since
    the epoch. A rank without a trace counts as unknown, not as missing.
    """
    known = {rank for rank, trace in traces.items() if "entries" in trace}
    groups: dict[tuple[str, str], list[RankGroup]] = {}
    for rank in sorted(known):
        for one in parse_recorder(rank, traces[rank]):
            groups.setdefault((one.backend, one.group), []).append(one)
    found = [finding for same in groups.values() if (finding := _judge(same, known, now, waits_s))]
    return tuple(sorted(found, key=lambda one: (one.kind == "missing", -one.waited_s)))


def _judge(same: list[RankGroup], known: set[int], now: float, waits_s: float) -> Mismatch | None:
    """What is wrong in one process group, of which all are the recorders."""
    waiting = [(one, call) for one in same if (call := one.waiting)]
    waited_s = max((now - call.began_at for _, call in waiting), default=0.0)
    if not waiting or waited_s < waits_s:
        return None
    seqs = {seq for one in same for seq in one.calls}
    for seq in sorted(seqs):
        calls = {one.rank: one.calls[seq] for one in same if seq in one.calls}
        if finding := _differ(same[0], seq, calls, waited_s):
            return finding
    return _missing(same, known, min(call.seq for _, call in waiting), waited_s)


def _differ(
    group: RankGroup, seq: int, calls: Mapping[int, Call], waited_s: float
) -> Mismatch | None:
    """Where ranks do different things under one number."""
    by_op = _by(calls, lambda call: call.op)
    where = _where(group)
    if len(by_op) > 1:
        few = min(by_op.values(), key=len)
        told = " and ".join(f"{op} {seq} ({name_ranks(ranks)})" for op, ranks in by_op.items())
        text = f"{name_ranks(calls)} are in different collectives{where}: {told}"
        return Mismatch(
            kind="different",
            text=text,
            ranks=tuple(few),
            group=_name(group),
            seq=seq,
            op=next(iter(by_op)),
            waited_s=waited_s,
        )
    op = next(iter(by_op))
    by_size = _by(calls, lambda call: _render_sizes(call.sizes))
    if len(by_size) > 1 and op in SAME_SIZES:
        few = min(by_size.values(), key=len)
        told = ", ".join(f"{size} on {name_ranks(ranks)}" for size, ranks in by_size.items())
        text = f"sizes differ in {op} {seq}{where}: {told}"
        return Mismatch(
            kind="sizes",
            text=text,
            ranks=tuple(few),
            group=_name(group),
            seq=seq,
            op=op,
            waited_s=waited_s,
        )
    return None


def _missing(same: list[RankGroup], known: set[int], seq: int, waited_s: float) -> Mismatch | None:
    """Which ranks have not entered the collective in which the others are."""
    there = {one.rank: one for one in same if one.last >= seq}
    members = next((one.members for one in same if one.members), ())
    late = {one.rank for one in same} - there.keys()
    # A rank whose recorder has nothing of this group has entered none of its collectives.
    # All ranks are in the first group, of which gloo does not name the members.
    everybody = known if same[0].group == DEFAULT else set(members) & known
    late |= everybody - {one.rank for one in same}
    if not late or not there:
        return None
    one = next(iter(there.values()))
    call = one.calls.get(seq) or one.calls[one.last]
    size = f"{_render_bytes(call)}, " if call.sizes else ""
    verb = "has" if len(late) == 1 else "have"
    others = "all others wait" if len(there) > 1 else f"{name_ranks(there)} waits"
    text = (
        f"{name_ranks(late)} {verb} not entered {call.op} {seq} "
        f"({size}group {_name(one)}), {others} since {waited_s:.0f} s"
    )
    return Mismatch(
        kind="missing",
        text=text,
        ranks=tuple(sorted(late)),
        group=_name(one),
        seq=seq,
        op=call.op,
        waited_s=waited_s,
    )


def _by(calls: Mapping[int, Call], key: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        found.setdefault(key(call), []).append(rank)
    return found


def _name(group: RankGroup) -> str:
    return group.description or ("default" if group.group == DEFAULT else group.group)


def _where(group: RankGroup) -> str:
    return "" if group.group == DEFAULT else f" of group {_name(group)}"


def _render_sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    """Numbers of elements, as people count them: ``1,024``, or ``2 x 512``."""
    return " + ".join(" x ".join(f"{n:,}" for n in shape) or "1" for shape in sizes)


def _render_bytes(call: Call) -> str:
    sizes = zip(call.sizes, (*call.dtypes, *[""] * len(call.sizes)), strict=False)
    total: float = sum(math.prod(shape) * _BYTES.get(dtype, 1) for shape, dtype in sizes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if total < 1024 or unit == "GB":
            break
        total /= 1024
    return f"{total:.0f} {unit}"
