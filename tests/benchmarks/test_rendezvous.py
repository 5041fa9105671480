"""What ``rendezvous`` measures is what a run does. Times are never asserted."""

from __future__ import annotations

import pytest

from benchmarks import rendezvous
from benchmarks.catalog import BENCHMARKS
from benchmarks.pulses import PULSES, LoneNode, Role, time_pulse
from benchmarks.rendezvous import meet
from benchmarks.trials import run_benchmark
from launcher.agent.roster.membership import Phase


@pytest.mark.parametrize(
    ("role", "few"),
    [("leader", 4), ("leader of a forming round", 4 + 8), ("member", 4)],
)
def test_a_lone_node_looks_at_as_many_keys_as_one_in_a_run(role: Role, few: int) -> None:
    node = LoneNode(role, 8)
    for _ in range(PULSES):
        node.pulse()
    assert node.keys <= few * (PULSES + 1), "and once more at the first pulse"
    assert node.state.leads == (role != "member")
    assert node.state.known_head.phase is (
        Phase.FORMING if role == "leader of a forming round" else Phase.SEALED
    )
    assert time_pulse(role, 8) > 0


@pytest.mark.slow
def test_real_nodes_meet_and_are_told_of_a_loss() -> None:
    found = meet("roster", 4, 60)
    assert all(value is not None for value in found.values())
    theirs = meet("c10d", 4, 60)
    assert theirs["sealed_s"] is not None


def test_rows_compare_sizes_and_the_peer_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(side: str, nodes: int, limit_s: float) -> dict[str, float | None]:
        if side == "c10d":
            return {"sealed_s": None if nodes > 64 else 10.0}
        return dict.fromkeys(("sealed_s", "told_s", "leader_s", "store_s", "pace"), nodes / 1000)

    monkeypatch.setattr(rendezvous, "meet", meet)
    monkeypatch.setattr(rendezvous, "time_pulse", lambda role, nodes: float(nodes))
    rows = list(run_benchmark("rendezvous", BENCHMARKS["rendezvous"], 2, 0))
    by_what = {row.what: row for row in rows}
    assert len(by_what) == len(rows)
    assert by_what["a pulse of the leader, 4,000 against 1,000 nodes"].ratio == 4.0
    assert by_what["a pulse of the leader, 4,000 against 1,000 nodes"].ok
    assert by_what["a pulse of the member, 4,000 against 1,000 nodes"].ok is False
    at_64 = by_what["ranks after the last node has come, 64 nodes"]
    assert at_64.ratio == pytest.approx(0.0064)
    assert by_what["ranks after the last node has come, 256 nodes"].theirs_instead == "none in 70 s"
    assert by_what["ranks after the last node has come, 1,000 nodes"].ok
    assert by_what["processor time of the store for each second at rest, 1,000 nodes"].ok is False
