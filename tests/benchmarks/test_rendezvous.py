"""What ``rendezvous`` measures is what a run does. Times are never asserted."""

from __future__ import annotations

import pytest
from launcher.agent.roster.membership import Phase

from benchmarks.pulses import PULSES, LoneNode, time_pulse


@pytest.mark.parametrize(
    ("role", "few"), [("leader", 4), ("leader of a forming round", 4 + 8), ("member", 4)]
)
def test_a_lone_node_looks_at_as_many_keys_as_one_in_a_run(role, few):
    node = LoneNode(role, 8)
    for _ in range(PULSES):
        node.pulse()
    assert node.keys <= few * (PULSES + 1), "and once more at the first pulse"
    assert node.state.leads == (role != "member")
    assert node.state.known_head.phase is (
        Phase.FORMING if role == "leader of a forming round" else Phase.SEALED
    )
    assert time_pulse(role, 8) > 0
