"""What the leader's rules cost for each node: they run at every step of every pulse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.agent.roster.decide import decide_change, decide_members, note_arrivals
from launcher.agent.roster.membership import Head, Member, Phase, Ring
from launcher.agent.roster.settings import Rules
from launcher.agent.roster.state_machine import start
from launcher.agent.roster.view import Beat, State, keys_to_look_at

NODES = 200


class Seat(str):
    """A seat that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Seat.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def leader_of(nodes: int, phase: Phase) -> State:
    """A leader that sees all members alive: at work, or waiting for the second round."""
    seats = tuple(Seat(f"{index}.a-0") for index in range(nodes))
    epoch = 2 if phase is Phase.FORMING else 1
    says = f"j{epoch}" if phase is Phase.FORMING else "r1"
    return replace(
        start(Rules(min_nodes=1, max_nodes=nodes), 0, "a"),
        seat=seats[0],
        head=Head(origin="a", leader=seats[0], phase=phase, epoch=epoch, members="m", nodes=nodes),
        ring=Ring(Member(seat=seat, addr="a", port=1) for seat in seats),
        ring_key="m",
        seats=seats,
        beats={Seat(str(seat)): Beat(f"1 {says}", moved=True) for seat in seats[1:]},
        waiting=phase is Phase.FORMING,
        said=says,
        entered=1,
        enlisted=seats[0],
    )


def compare(state: State) -> int:
    """Comparisons of seats in one step of a node."""
    Seat.compared = 0
    state = note_arrivals(state, 1.0)
    decide_change(state, 1.0)
    decide_members(state, 1.0)
    keys_to_look_at(state)
    return Seat.compared


@pytest.mark.parametrize("phase", [Phase.SEALED, Phase.FORMING])
def test_a_step_of_the_leader_compares_each_seat_a_few_times_however_many_there_are(
    phase: Phase,
) -> None:
    once, twice = (compare(leader_of(nodes, phase)) for nodes in (NODES, 2 * NODES))
    assert once < 40 * NODES
    assert twice < 3 * once


def test_a_step_of_a_member_compares_as_few_seats_however_many_there_are() -> None:
    def count(nodes: int) -> int:
        state = replace(leader_of(nodes, Phase.SEALED), seat=Seat(f"{nodes // 2}.a-0"), beats={})
        decide_change(state, 1.0)  # what is worked out once for each membership
        return compare(state)

    assert count(NODES) == count(4 * NODES) < 20
