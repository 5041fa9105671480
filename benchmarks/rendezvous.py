"""``rendezvous``: how soon many nodes have ranks and hear of a loss, beside c10d; processor time
and memory of their coordinator."""

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
from launcher.agent.membership import decisions
from launcher.agent.membership.group import GroupState, Join, Last, Member, RoundCause, Rules

PURE = (64, 256, 1_000, 4_000)
LINEAR = Goal(of="ratio", most=5.0)
"""Four times the nodes may take five times as long."""
REAL = (64, 256, 1_000)
LARGEST = REAL[-1]
PEERS = (256, 64, 16)
"""Sizes at which c10d is asked, until it answers."""
LIMIT_S, PEER_LIMIT_S = 120.0, 70.0
SLOW_PAIRS = 3


def rendezvous() -> Generator[Trial]:
    """Processor time of the coordinator's decisions, then real nodes around a real one."""
    yield measure_decisions()
    peer, asked = find_peer_size()
    for nodes in sorted({*REAL, peer}):
        yield meetings(nodes, with_peer=nodes == peer, instead=asked.get(nodes, ""))


def measure_decisions() -> Trial:
    """A row for each size, and one for the growth from each size to the next."""
    what = "all decisions of a round, a loss and the next round"
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
    take = in_turn({str(nodes): partial(time_decisions, nodes) for nodes in PURE})
    return Trial(take=take, rows=(*sizes, *steps))


def time_decisions(nodes: int) -> float:
    """Seconds of processor time until all have ranks, one is lost, and the others have ranks."""
    group = GroupState(rules=Rules(min_nodes=nodes - 1, max_nodes=nodes))
    members = [Member(f"{index}.0a1b2c3d", "10.0.0.1", 1, 2, 8) for index in range(nodes)]
    began = time.process_time()
    for generation, some in enumerate((members, members[1:])):
        # As many at once as the coordinator finds in one turn of its loop.
        for first in range(0, len(some), 64):
            joins = [Join(member, 60.0, Last(generation)) for member in some[first : first + 64]]
            group, _ = decisions.step(group, joins, 0.0)
        assert (group.sealed, len(group.members)) == (True, len(some))
        if generation == 0:
            group, _ = decisions.step(
                group, [decisions.Gone(members[0].name, RoundCause.LOST)], 0.0
            )
    return time.process_time() - began


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
    largest = nodes == LARGEST

    def row(what: str, figure: str, most: float) -> Comparison:
        goal = Goal(of="seconds", most=most) if largest else None
        return Comparison(what=f"{what}, {nodes:,} nodes", ours=figure, theirs=None, goal=goal)

    ranked = Comparison(
        what=f"ranks after the last node has come, {nodes:,} nodes",
        theirs="theirs" if with_peer else None,
        ours="sealed_s",
        goal=Goal(of="ratio", most=0.3)
        if with_peer
        else Goal(of="seconds", most=1.0)
        if largest
        else None,
        theirs_instead=instead,
    )
    rows = (
        ranked,
        row("a loss, from the first node that is told to the last", "told_s", 0.1),
        row("a loss, from the kill to the last node that is told", "known_s", 0.3),
        row("processor time of the coordinator for each second at rest", "coordinator_s", 0.15),
        Comparison(
            what=f"memory of the coordinator, {nodes:,} nodes",
            ours="coordinator_mib",
            theirs=None,
            unit="MiB",
        ),
    )
    take = partial(take_meeting, nodes, with_peer)
    return Trial(take=take, rows=rows, warm_up=0, pairs=SLOW_PAIRS)


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
