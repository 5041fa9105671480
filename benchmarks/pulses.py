"""Processor time of one pulse of the roster's state machine, with many nodes and nothing real."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

from launcher.agent.roster import events
from launcher.agent.roster.membership import Head, Member, Phase, Ring, format_head, parse_head
from launcher.agent.roster.settings import Rules
from launcher.agent.roster.state_machine import start, step

Role = Literal["leader", "leader of a forming round", "member"]
PULSES = 40


class LoneNode:
    """One node's machine that pulses while all others live."""

    def __init__(self, role: Role, nodes: int) -> None:
        self.rules = Rules(min_nodes=1, max_nodes=nodes)
        seats = [f"{index}.0a1b2c3d-0" for index in range(nodes)]
        forms = role == "leader of a forming round"
        head = Head(
            origin="0a1b2c3d",
            leader=seats[0],
            phase=Phase.FORMING if forms else Phase.SEALED,
            epoch=2 if forms else 1,
            members="m",
            nodes=nodes,
        )
        self.text = format_head(head)
        self.listing = "".join(f"{seat} " for seat in seats)
        self.says = "j2" if forms else "r1"
        self.late = seats[-1] if forms else ""
        """A member whose workers are slow to stop, for which the round waits."""
        mine = seats[nodes // 2] if role == "member" else seats[0]
        self.state = replace(
            start(self.rules, seats.index(mine), "0a1b2c3d"),
            seat=mine,
            text=self.text,
            head=parse_head(self.text),
            ring=Ring(Member(seat=seat, addr="10.0.0.1", port=29400) for seat in seats),
            ring_key="m",
            waiting=forms,
            card="card",
            carded="card",
            entered=1,
            enlisted=mine,
        )
        self.now = 0.0
        self.keys = 0
        """How many keys were fetched."""

    def pulse(self) -> None:
        """One pulse, with the answers of a store."""
        self.now += self.rules.interval_s
        event: events.Event | None = events.PlainEvent.PULSE
        while event is not None:
            self.state, actions = step(self.state, event, self.now)
            event = next((self._answer(action) for action in actions), None)

    def _answer(self, action: events.Action) -> events.Event:
        match action:
            case events.Write():
                return events.Done()
            case events.Fetch(keys):
                self.keys += len(keys)
                return events.Values({key: self._read(key) for key in keys})
        raise AssertionError(f"a run in which nothing happens asks for no {action}")

    def _read(self, key: str) -> str:
        if key == "head":
            return self.text
        if key == "seats":
            return self.listing
        seat = key.removeprefix("beat/")
        return f"{self.state.count} {'r1' if seat == self.late else self.says}"


def time_pulse(role: Role, nodes: int) -> float:
    """Seconds of processor time of one pulse."""
    node = LoneNode(role, nodes)
    node.pulse()
    began = time.process_time()
    for _ in range(PULSES):
        node.pulse()
    return (time.process_time() - began) / PULSES
