"""``rendezvous``: what a run of very many nodes costs, by the state machine alone and for real."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from functools import partial
from itertools import pairwise

from benchmarks.commands import read
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.pulses import Role, time_pulse
from benchmarks.trials import Comparison, Round, Trial, in_turn

PURE = (64, 256, 1_000, 4_000)
LINEAR, CONSTANT = Goal(of="ratio", most=5.0), Goal(of="ratio", most=1.5)
"""Four times the nodes may take five times as long; a member's pulse does not depend on them."""
GROWTH: dict[Role, Goal] = {
    "leader": LINEAR,
    "leader of a forming round": LINEAR,
    "member": CONSTANT,
}
REAL = (64, 256, 1_000)
LARGEST = REAL[-1]
PEERS = (256, 64, 16)
"""Sizes at which c10d is asked, until it answers."""
LIMIT_S, PEER_LIMIT_S = 120.0, 70.0
SLOW_PAIRS = 3
AT_REST = {
    "leader_s": ("processor time of the leader for each second at rest", 0.05),
    "store_s": ("processor time of the store for each second at rest", 0.15),
}


def rendezvous() -> Generator[Trial]:
    """Processor time of one node's pulses, then real nodes around a real store."""
    for role, growth in GROWTH.items():
        yield pulses(role, growth)
    peer, asked = find_peer_size()
    for nodes in sorted({*REAL, peer}):
        yield meetings(nodes, with_peer=nodes == peer, instead=asked.get(nodes, ""))


def pulses(role: Role, growth: Goal) -> Trial:
    """A row for each size, and one for the growth from each size to the next."""
    sizes = (
        Comparison(what=f"a pulse of the {role}, {nodes:,} nodes", ours=str(nodes), theirs=None)
        for nodes in PURE
    )
    steps = (
        Comparison(
            what=f"a pulse of the {role}, {many:,} against {few:,} nodes",
            ours=str(many),
            theirs=str(few),
            goal=growth,
        )
        for few, many in pairwise(PURE)
    )
    take = in_turn({str(nodes): partial(time_pulse, role, nodes) for nodes in PURE})
    return Trial(take=take, rows=(*sizes, *steps))


def find_peer_size() -> tuple[int, dict[int, str]]:
    """The largest size at which c10d answers in time, and what it did at the others, in words."""
    asked = {}
    for nodes in PEERS:
        if meet("c10d", nodes, PEER_LIMIT_S)["sealed_s"] is not None:
            return nodes, asked
        asked[nodes] = f"none in {PEER_LIMIT_S:g} s"
    raise BenchmarkError("c10d does not answer at any size; fix: a machine that is not busy")


def meetings(nodes: int, with_peer: bool, instead: str) -> Trial:
    """Real nodes that meet, are at rest, and lose one of them."""
    sealed_goal = Goal(of="seconds", most=2.0) if nodes == LARGEST else None
    rows = [
        Comparison(
            what=f"ranks after the last node has come, {nodes:,} nodes",
            theirs="theirs" if with_peer else None,
            ours="sealed_s",
            goal=Goal(of="ratio", most=0.3) if with_peer else sealed_goal,
            theirs_instead=instead,
        ),
        Comparison(
            what=f"a loss, from the first node that is told to the last, {nodes:,} nodes",
            ours="told_s",
            theirs=None,
            goal=Goal(of="seconds", most=1.0) if nodes == LARGEST else None,
        ),
    ]
    for figure, (what, most) in AT_REST.items():
        goal = Goal(of="seconds", most=most) if nodes == LARGEST else None
        row = Comparison(what=f"{what}, {nodes:,} nodes", ours=figure, theirs=None, goal=goal)
        rows.append(row)
    rows.append(
        Comparison(
            what=f"pulses of the leader in a second at rest, {nodes:,} nodes",
            ours="pace",
            theirs=None,
            note=f"{nodes:,} nodes: a pace below 4 says that this machine is too small for them",
            unit="pulses",
        )
    )
    take = partial(take_meeting, nodes, with_peer)
    return Trial(take=take, rows=tuple(rows), warm_up=0, pairs=SLOW_PAIRS)


def take_meeting(nodes: int, with_peer: bool) -> Round:
    """One meeting of each side."""
    figures = dict(meet("roster", nodes, LIMIT_S))
    if with_peer:
        figures["theirs"] = meet("c10d", nodes, PEER_LIMIT_S)["sealed_s"]
    found = {name: value for name, value in figures.items() if value is not None}
    if missing := sorted(figures.keys() - found.keys()):
        raise BenchmarkError(f"{nodes} nodes gave no {', '.join(missing)}; fix: a quiet machine")
    return found


def meet(side: str, nodes: int, limit_s: float) -> dict[str, float | None]:
    """One meeting of so many processes; see ``peers/many_nodes.py``."""
    argv = [sys.executable, "-m", "benchmarks.peers.many_nodes", side, str(nodes), str(limit_s)]
    figures: dict[str, float | None] = json.loads(read(argv))
    return figures
