"""Rendered pods in real containers: one is lost or drained, its controller makes another."""

import json
from typing import Any

import pytest

from tests.k8s.claims.test_pods_recover import make
from tests.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
TRAIN = ["-m", "train", "--epochs=400"]


@pytest.mark.parametrize("kind", ["pytorchjob", "job"])
def test_a_drained_pod_commits_leaves_with_143_and_its_successor_joins_the_others(kind, make):
    pods = make(kind, TRAIN)
    run_dir = pods.claim("storage") / "runs/digits"

    def told(node: str, event: str) -> list[dict[str, Any]]:
        """What a node's agent wrote into its ledger, by ``index-incarnation``."""
        ledger = run_dir / f"ledger/agent-{node}.jsonl"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    kept, drained = pods.start(0), pods.start(1)
    wait_until(lambda: told("1-0", "first-step"))
    starts = "rendezvous-ended", "restart"
    # On a busy machine node 0 may have begun alone.
    before = [told("0-0", event) for event in starts]
    # What a kubelet does on a drain: SIGTERM, then up to terminationGracePeriodSeconds.
    drained.stop(timeout=35)
    assert drained.wait(timeout=60)["StatusCode"] == 143, drained.logs().decode()
    (committed,) = told("1-0", "stop-acknowledged")
    assert committed["step"] > 0
    replaced = pods.start(1)
    wait_until(lambda: told("1-1", "first-step"))
    assert told("0-0", "met-again")[-1]["world_size"] == 2
    assert [told("0-0", event) for event in starts] == before, "its workers go on"
    for container in (kept, replaced):
        container.kill("SIGTERM")
    for container in (kept, replaced):
        assert container.wait(timeout=120)["StatusCode"] == 143, container.logs().decode()
