"""The flight recorders of all ranks, joined: which rank is missing in a collective, or slow. Pure.

Each rank counts the collectives of a process group from 1. The first number at which ranks made
different calls is where it went wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from launcher.agent.disk import show_bytes
from launcher.verdict.stacks import name_ranks

Kind = Literal["different", "sizes", "left", "missing", "slow"]
Like = tuple[object, ...]
Key = TypeVar("Key", str, Like)
WAITS_S = 1.0
"""Shorter waits are not reported: ranks do not arrive at the same instant."""
LEAST_CALLS, LEAST_S, SLOW_SHARE = 20, 1.0, 0.3
"""A straggler keeps the others waiting for over ``SLOW_SHARE`` of the time, in at least
``LEAST_CALLS`` collectives and ``LEAST_S`` seconds."""
LEAST_REPEATED = 3
"""A collective entered this often counts as part of every step."""
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

    @property
    def like(self) -> Like:
        """Two calls are of the same collective if this is equal."""
        return self.op, self.sizes if self.op in SAME_SIZES else (), self.dtypes


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """One process group: each rank's calls by number, and its members as far as known."""

    name: str
    is_default: bool
    places: Mapping[int, str]
    calls: dict[int, dict[int, Call]] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)

    def at(self, ranks: Iterable[int]) -> str:
        """Where in the user's code these ranks are: `` at train.py:30``; empty if not known."""
        places = sorted({self.places[rank] for rank in ranks if self.places.get(rank)})
        return f" at {' and '.join(places)}" if places else ""


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


def join_recorders(
    traces: Mapping[int, Mapping[str, Any]],
    now: float,
    *,
    waits_s: float = WAITS_S,
    places: Mapping[int, str] = {},
    left: Collection[int] = (),
) -> tuple[Mismatch, ...]:
    """What is wrong between the ranks, worst first; empty if nothing is wrong.

    ``traces`` are what the recorders of these ranks wrote at ``now``, in seconds since the epoch.
    A rank without a trace counts as unknown, not as missing. ``places`` are the lines of the user's
    code where ranks stand, and ``left`` are ranks that had ended well by then.
    """
    known = {rank for rank, trace in traces.items() if "entries" in trace}
    groups: dict[tuple[str, str], ProcessGroup] = {}
    for rank in sorted(known):
        _add_trace(groups, rank, traces[rank], places)
    judged = (_judge(group, known, now, waits_s, left) for group in groups.values())
    mismatches = [mismatch for mismatch in judged if mismatch]
    return tuple(sorted(mismatches, key=lambda m: (m.kind in ("missing", "slow"), -m.waited_s)))


def _add_trace(
    groups: dict[tuple[str, str], ProcessGroup],
    rank: int,
    trace: Mapping[str, Any],
    places: Mapping[int, str],
) -> None:
    """Adds a rank's recorded collectives; skips malformed entries."""
    entries = trace["entries"]
    for entry in entries if isinstance(entries, list) else ():
        try:
            if entry.get("is_p2p"):
                continue
            backend, _, op = str(entry["profiling_name"]).rpartition(":")
            id, description = (str(word) for word in entry["process_group"])
            call = Call(
                seq=int(entry["collective_seq_id"]),
                op=op,
                sizes=tuple(tuple(int(n) for n in shape) for shape in entry["input_sizes"]),
                dtypes=tuple(map(str, entry.get("input_dtypes", ()))),
                began_at=int(entry["time_created_ns"]) / 1e9,
                is_over=bool(entry.get("retired")) or entry.get("state") == "completed",
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        unnamed = "default" if id == DEFAULT else id
        name = unnamed if description in _UNNAMED else description
        group = ProcessGroup(name=name, is_default=id == DEFAULT, places=places)
        group = groups.setdefault((backend, id), group)
        group.calls.setdefault(rank, {})[call.seq] = call
        group.members.update(_members(trace, id))


def _members(trace: Mapping[str, Any], group: str) -> tuple[int, ...]:
    try:
        listed = trace["pg_config"][group]["ranks"]
        ranks = json.loads(listed) if isinstance(listed, str) else listed
        return tuple(int(rank) for rank in ranks)
    except (KeyError, TypeError, ValueError):
        return ()


def _judge(
    group: ProcessGroup, known: set[int], now: float, waits_s: float, left: Collection[int]
) -> Mismatch | None:
    """What is wrong in one process group."""
    waiting = [
        call for calls in group.calls.values() for call in calls.values() if not call.is_over
    ]
    waited_s = max((now - call.began_at for call in waiting), default=0.0)
    if not waiting or waited_s < min(waits_s, WAITS_S):
        return _slow(group)
    seqs = sorted({seq for calls in group.calls.values() for seq in calls})
    mismatch = next(filter(None, (_differ(group, seq) for seq in seqs)), None)
    if mismatch is None and waited_s < waits_s:
        return _slow(group)  # who is missing may still come
    seq = min(call.seq for call in waiting)
    mismatch = mismatch or _missing(group, known, seq, waited_s) or _left(group, left, seq)
    return mismatch and replace(mismatch, waited_s=waited_s)


def _make_mismatch(
    group: ProcessGroup, kind: Kind, text: str, ranks: Collection[int], call: Call
) -> Mismatch:
    named = tuple(sorted(ranks))
    return Mismatch(kind=kind, text=text, ranks=named, group=group.name, seq=call.seq, op=call.op)


def _slow(group: ProcessGroup) -> Mismatch | None:
    """The ranks that come last to most collectives, if the others wait for them for long.

    The clocks of nodes count as equal. A clock that is far ahead does not make a straggler: no rank
    is later to a collective than the others are to the next one.
    """
    seqs = sorted(set.intersection(*map(set, group.calls.values())))
    if len(seqs) < LEAST_CALLS or len(group.calls) < 2:
        return None
    entered_at = {
        rank: [calls[seq].began_at for seq in seqs] for rank, calls in group.calls.items()
    }
    first = [min(at) for at in zip(*entered_at.values(), strict=True)]
    late_s = {rank: sum(at) - sum(first) for rank, at in entered_at.items()}
    most_s, whole_s = max(late_s.values()), first[-1] - first[0]
    slow = [rank for rank, s in late_s.items() if s > most_s / 2]
    is_long = whole_s >= LEAST_S and SLOW_SHARE * whole_s < most_s <= whole_s
    if not is_long or 2 * len(slow) > len(entered_at):
        return None
    text = (
        f"{name_ranks(slow)} {'is' if len(slow) == 1 else 'are'} slow: the others wait "
        f"{most_s / whole_s:.0%} of the time, in {len(seqs)} collectives of {whole_s:.1f} s"
    )
    return _make_mismatch(group, "slow", text, slow, group.calls[slow[0]][seqs[-1]])


def _differ(group: ProcessGroup, seq: int) -> Mismatch | None:
    """The mismatch if ranks made different calls under the number ``seq``."""
    calls = {rank: of_rank[seq] for rank, of_rank in sorted(group.calls.items()) if seq in of_rank}
    alike = _group_ranks(calls, lambda call: call.like)
    if len(alike) < 2:
        return None
    where = "" if group.name == "default" else f" of group {group.name}"
    if len(alike) == 2 and (left_out := _left_out(group, seq, alike)):
        late, call = left_out
        others = group.at(group.calls.keys() - set(late))
        text = f"{name_ranks(late)} {_have(late)} left out {call.op} {seq}{others}{where}"
        return _make_mismatch(group, "missing", text, late, call)
    # Blame the fewest ranks; on a tie, those whose call is the rarer one.
    odd = min(alike.items(), key=lambda item: (len(item[1]), _times(group, *item)))[1]
    call = next(iter(calls.values()))
    if len(by_op := _group_ranks(calls, lambda call: call.op)) > 1:
        listed = " and ".join(
            f"{op} {seq}{group.at(ranks)} ({name_ranks(ranks)})" for op, ranks in by_op.items()
        )
        text = f"{name_ranks(calls)} are in different collectives{where}: {listed}"
        return _make_mismatch(group, "different", text, odd, call)
    by_size = _group_ranks(calls, lambda call: _render_sizes(call.sizes))
    differ = (
        by_size if len(by_size) > 1 else _group_ranks(calls, lambda call: ", ".join(call.dtypes))
    )
    listed = ", ".join(
        f"{size} on {name_ranks(ranks)}{group.at(ranks)}" for size, ranks in differ.items()
    )
    text = f"sizes differ in {call.op} {seq}{where}: {listed}"
    return _make_mismatch(group, "sizes", text, odd, call)


def _times(group: ProcessGroup, like: Like, ranks: Sequence[int]) -> int:
    return sum(call.like == like for call in group.calls[ranks[0]].values())


def _left_out(
    group: ProcessGroup, seq: int, alike: Mapping[Like, list[int]]
) -> tuple[list[int], Call] | None:
    """The ranks that skipped a call and are in the next one, and that call; None if there are none.

    Earlier steps tell which call comes next.
    """
    for like, ranks in alike.items():
        calls = group.calls[ranks[0]]
        likes = {number: call.like for number, call in calls.items()}
        before = (likes.get(seq - 2), likes.get(seq - 1))
        # An earlier step with the same two calls before shows what comes at ``seq`` and next.
        steps = (n for n in likes if n < seq and (likes.get(n - 2), likes.get(n - 1)) == before)
        at = max(steps, default=0) if None not in before else 0
        late = alike.get(likes.get(at + 1, ()), ranks)
        if likes.get(at) == like and late is not ranks:
            return late, calls[seq]
    return None


def _missing(group: ProcessGroup, known: set[int], seq: int, waited_s: float) -> Mismatch | None:
    """Which ranks have not entered the collective in which the others wait."""
    entered = {rank: calls for rank, calls in group.calls.items() if max(calls) >= seq}
    # A rank whose recorder has nothing of this group has entered none of its collectives.
    # All ranks are in the default group, whose members gloo does not name.
    members = (known if group.is_default else group.members & known) | group.calls.keys()
    missing = members - entered.keys()
    if not missing or not entered:
        return None
    calls = next(iter(entered.values()))
    call = calls.get(seq) or calls[max(calls)]
    size = f"{_render_bytes(call)}, " if call.sizes else ""
    others = "all others wait" if len(entered) > 1 else f"{name_ranks(entered)} waits"
    text = (
        f"{name_ranks(missing)} {_have(missing)} not entered {call.op} {seq} "
        f"({size}group {group.name}), {others}{group.at(entered)} since {waited_s:.0f} s"
    )
    return _make_mismatch(group, "missing", text, missing, call)


def _left(group: ProcessGroup, left: Collection[int], seq: int) -> Mismatch | None:
    """The mismatch if ranks had ended before a collective that the others enter in every step."""
    entered = {rank: calls for rank, calls in group.calls.items() if seq in calls}
    call = next(calls[seq] for calls in entered.values())
    times = min(sum(c.like == call.like for c in calls.values()) for calls in entered.values())
    if not left or times < LEAST_REPEATED:
        return None
    text = (
        f"{name_ranks(left)} made fewer steps: it had ended before {call.op} {seq}, which "
        f"{name_ranks(entered)} {_have(entered)} entered{group.at(entered)} as in each step before"
    )
    return _make_mismatch(group, "left", text, left, call)


def _have(ranks: Collection[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _group_ranks(calls: Mapping[int, Call], key: Callable[[Call], Key]) -> dict[Key, list[int]]:
    ranks_by_key: dict[Key, list[int]] = {}
    for rank, call in calls.items():
        ranks_by_key.setdefault(key(call), []).append(rank)
    return ranks_by_key


def _render_sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    """Numbers of elements, as people count them: ``1,024``, or ``2 x 512``."""
    return " + ".join(" x ".join(f"{n:,}" for n in shape) or "1" for shape in sizes)


def _render_bytes(call: Call) -> str:
    sizes = zip(call.sizes, (*call.dtypes, *[""] * len(call.sizes)), strict=False)
    return show_bytes(sum(math.prod(shape) * _BYTES.get(dtype, 1) for shape, dtype in sizes))
