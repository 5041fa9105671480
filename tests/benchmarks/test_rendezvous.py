"""What ``rendezvous`` measures is what a run does. Times are never asserted."""

from __future__ import annotations

from benchmarks.rendezvous import gather, time_step
from launcher.agent.membership.group import Phase


def test_a_tick_is_measured_in_a_running_group_and_a_join_in_a_forming_one() -> None:
    assert gather(8, 8).phase is Phase.SEALED
    forming = gather(8, 6)
    assert (forming.phase, len(forming.waiting())) == (Phase.FORMING, 6)
    assert time_step(8, whole=True) > 0
    assert time_step(8, whole=False) > 0
