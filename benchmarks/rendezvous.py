"""``rendezvous``: what a run of very many nodes costs, by the decisions alone and for real."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from functools import partial
from itertools import pairwise

from benchmarks.commands import read
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Comparison, Round, Trial, in_turn
from launcher.agent.membership import decide
from launcher.agent.membership.group import GroupState
from launcher.agent.membership.settings import Member, Rules

PURE = (64, 256, 1_000, 4_000)
STEPS = {"a join to a forming group": False, "a tick of a running group": True}
"""What is decided, and whether all nodes have come by then."""
LINEAR = Goal(of="ratio", most=5.0)
"""Four times the nodes may take five times as long."""
REPEAT = 40
REAL = (64, 256, 1_000)
LARGEST = REAL[-1]
PEERS = (256, 64, 16)
"""Sizes at which c10d is asked, until it answers."""
LIMIT_S, PEER_LIMIT_S = 120.0, 70.0
SLOW_PAIRS = 3
FIGURES = (
    ("told_s", "a loss, from the first node that is told to the last", 0.1, "s"),
    ("lost_s", "a loss, from the kill to the last node that is told", None, "s"),
    ("rest_s", "processor time of the coordinator for each second at rest", 0.2, "s"),
    ("memory_mb", "memory of the coordinator", None, "MB"),
)
"""Name, words, goal at the largest size, unit."""


def rendezvous() -> Generator[Trial]:
    """Processor time of one decision, then real nodes around a real coordinator."""
    for what, whole in STEPS.items():
        yield decisions(what, whole)
    peer, asked = find_peer_size()
    for nodes in sorted({*REAL, peer}):
        yield meetings(nodes, with_peer=nodes == peer, instead=asked.get(nodes, ""))


def decisions(what: str, whole: bool) -> Trial:
    """A row for each size, and one for the growth from each size to the next."""
    sizes = (
        Comparison(what=f"{what}, {nodes:,} nodes", ours=str(nodes), theirs=None) for nodes in PURE
    )
    steps = (
        Comparison(
            what=f"{what}, {many:,} against {few:,} nodes",
            ours=str(many),
            theirs=str(few),
            goal=LINEAR,
        )
        for few, many in pairwise(PURE)
    )
    take = in_turn({str(nodes): partial(time_step, nodes, whole) for nodes in PURE})
    return Trial(take=take, rows=(*sizes, *steps))


def gather(nodes: int, come: int) -> GroupState:
    """A group of a fixed number of nodes, as it stands once so many have come."""
    members = [Member(f"{at}.0a1b2c3d", "10.0.0.1", 29400, 29401, 8) for at in range(come)]
    group = GroupState(rules=Rules(min_nodes=nodes, max_nodes=nodes))
    return decide.step(group, [decide.Join(member, 600.0) for member in members], 1.0)[0]


def time_step(nodes: int, whole: bool) -> float:
    """Seconds of processor time of one decision."""
    group = gather(nodes, nodes if whole else nodes - 2)
    last = Member(f"{nodes - 1}.0a1b2c3d", "10.0.0.1", 29400, 29401, 8)
    event = decide.Tick() if whole else decide.Join(last, 600.0)
    began = time.process_time()
    for _ in range(REPEAT):
        decide.step(group, [event], 2.0)
    return (time.process_time() - began) / REPEAT


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
    is_largest = nodes == LARGEST
    sealed_goal = Goal(of="seconds", most=1.0) if is_largest else None
    ranks = Comparison(
        what=f"ranks after the last node has come, {nodes:,} nodes",
        theirs="theirs" if with_peer else None,
        ours="sealed_s",
        goal=Goal(of="ratio", most=0.3) if with_peer else sealed_goal,
        theirs_instead=instead,
    )
    others = (
        Comparison(
            what=f"{what}, {nodes:,} nodes",
            ours=name,
            theirs=None,
            goal=Goal(of="seconds", most=most) if is_largest and most else None,
            unit=unit,
        )
        for name, what, most, unit in FIGURES
    )
    take = partial(take_meeting, nodes, with_peer)
    return Trial(take=take, rows=(ranks, *others), warm_up=0, pairs=SLOW_PAIRS)


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
