"""The roster under torch's ``elastic_launch``, which is given no restart to spend."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.roster.store import serve_forked
from tests.launcher.agent.roster.elastic_process import HEADER, SLEEP, Agents
from tests.launcher.agent.roster.node_process import wait_until

LIMIT_S = 1.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    store = serve_forked(0, "127.0.0.1")
    started = Agents(tmp_path, store.port)
    try:
        yield started
        started.end()
    finally:
        store.stop()


def test_a_node_lost_while_workers_sleep_costs_no_restart(
    agents: Agents,
) -> None:
    nodes = [agents.start(index, (1, 3), SLEEP) for index in range(3)]
    wait_until(lambda: all(n.runs_as(r, 3) for r, n in enumerate(nodes)), 60)
    lost_at = nodes[0].kill()
    wait_until(lambda: nodes[1].runs_as(0, 2) and nodes[2].runs_as(1, 2), 60)
    took_s = time.monotonic() - lost_at
    print(f"lost while workers sleep: computing again after {took_s / LIMIT_S:.2f} limits")
    again = agents.start(0, (1, 3), SLEEP)
    nodes = [again, *nodes[1:]]
    wait_until(lambda: all(n.runs_as(r, 3) for r, n in enumerate(nodes)), 60)


@pytest.mark.slow
def test_workers_that_fail_beyond_max_restarts_end_the_job_on_every_node(agents: Agents) -> None:
    script = HEADER + 'test "$RANK" = 1 || exec sleep 600; sleep 0.5; exit 7'
    nodes = [
        agents.start(index, (1, 2), script, max_restarts=2, agent_restarts=1000)
        for index in range(2)
    ]
    wait_until(lambda: all(node.outcome() for node in nodes), 60)
    for node in nodes:
        outcome = node.outcome()
        assert outcome
        assert outcome["ended"] == "RestartsExhaustedError"
        assert outcome["closed"] == "restarts-exhausted"
        assert outcome["counts"] == {"fault": 2}
        assert len(node.starts()) == 3


@pytest.mark.slow
def test_a_job_that_succeeds_closes_the_run_for_latecomers(agents: Agents) -> None:
    script = HEADER + "sleep 0.5"
    nodes = [agents.start(index, (2, 2), script) for index in range(2)]
    wait_until(lambda: all(node.outcome() for node in nodes), 60)
    assert {node.outcome()["ended"] for node in nodes} == {"returned"}  # type: ignore[index]
    late = agents.start(0, (2, 2), script)
    wait_until(late.outcome, 60)
    assert late.outcome() == {"ended": "RendezvousClosedError", "closed": "finished", "counts": {}}


@pytest.mark.slow
def test_a_node_whose_agent_is_told_to_end_leaves_and_the_others_go_on(agents: Agents) -> None:
    nodes = [agents.start(index, (1, 2), SLEEP, detection_limit_s=600.0) for index in range(2)]
    wait_until(lambda: all(n.runs_as(r, 2) for r, n in enumerate(nodes)), 60)
    assert nodes[0].process.pid
    os.kill(nodes[0].process.pid, signal.SIGTERM)
    wait_until(lambda: nodes[1].runs_as(0, 1), 60)  # sooner than the limit
    assert nodes[0].outcome() == {"ended": "SignalException", "closed": "", "counts": {}}
