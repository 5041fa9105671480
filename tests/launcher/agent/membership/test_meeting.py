"""Nodes that know no address meet through a folder, again after losses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.agent.addresses import LOOPBACK, name_machine, own_addresses
from launcher.agent.membership import meeting
from launcher.agent.membership.meeting import Announcement, Meeting, UnreachableError, reach
from launcher.agent.membership.process import CoordinatorProcess, serve_forked
from launcher.agent.membership.settings import Rules
from launcher.contract.agent_settings import AgentSettings, NodeTask
from launcher.contract.clock import SystemClock
from launcher.contract.node_plan import Elastic
from tests.launcher.node_plans import node_plan

# -- one node's decisions ------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    file = tmp_path / "coordinator-0.json"
    file.touch()
    found = serve_forked(0, Rules(min_nodes=1, max_nodes=2), "run", sign=file)
    yield found
    found.stop()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GONE_S", 2.5)
    monkeypatch.setattr(meeting, "REACH_LIMIT_S", 4.0)


def said_of(store: CoordinatorProcess, **others: Any) -> Announcement:
    known: dict[str, Any] = {
        "addresses": (LOOPBACK,),
        "port": store.port,
        "host": "n1",
        "node_index": 1,
        "machine": name_machine(),
        "run_id": "run",
        "origin": store.origin,
    }
    return Announcement(**{**known, **others})


def meeting_of(folder: Path, conf: tuple[tuple[str, str], ...] = (), **settings: Any) -> Meeting:
    agent = AgentSettings(meet_dir=str(folder), **settings)
    return Meeting(NodeTask(node=node_plan({"conf": conf}), settings=agent), SystemClock())


def test_a_store_is_reached_at_the_first_address_that_answers(store: CoordinatorProcess) -> None:
    addresses = ("203.0.113.9", *own_addresses(), LOOPBACK)
    reached, *_ = reach(said_of(store, addresses=addresses))
    assert reached is not None
    assert reached.endpoint.host == (*own_addresses(), LOOPBACK)[0]
    assert reached.local_addr == (own_addresses()[0] if own_addresses() else None)


def test_another_store_at_the_same_port_is_not_taken_for_it(store: CoordinatorProcess) -> None:
    assert reach(said_of(store, origin="other")) == (None, (), (LOOPBACK,))


def test_addresses_of_another_machine_are_not_looked_for_on_this_one(
    store: CoordinatorProcess,
) -> None:
    addresses = (*own_addresses(), LOOPBACK)
    assert reach(said_of(store, addresses=addresses, machine="another")) == (None, (), ())


def test_a_store_that_lives_but_cannot_be_reached_is_not_replaced(
    tmp_path: Path, store: CoordinatorProcess, short: None
) -> None:
    said = said_of(store, machine="another", addresses=("203.0.113.9",))
    (tmp_path / "coordinator-0.json").write_text(json.dumps(asdict(said)))
    with pytest.raises(UnreachableError, match=r"node 1 on n1 is alive.*203\.0\.113\.9"):
        meeting_of(tmp_path).plan_round({})
    assert not (tmp_path / "coordinator-1.json").exists()


def test_a_store_that_refuses_and_shows_no_sign_is_replaced(
    tmp_path: Path, store: CoordinatorProcess, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stop()
    # There is no other machine here that could refuse.
    monkeypatch.setattr(meeting, "reach", lambda said, token: (None, ("203.0.113.9",), ()))
    file = tmp_path / "coordinator-0.json"
    file.write_text(json.dumps(asdict(said_of(store))))
    began = time.monotonic()
    task = meeting_of(tmp_path).plan_round({"last": "[1, 2]"})
    assert 2.5 <= time.monotonic() - began < 7.5
    rendezvous = task.node.rendezvous
    assert isinstance(rendezvous, Elastic)
    assert rendezvous.is_host
    conf = dict(rendezvous.conf)
    assert conf["last"] == "[1, 2]"
    CoordinatorProcess(pid=int(conf["coordinator_pid"]), port=rendezvous.endpoint_port).stop()
    assert (tmp_path / "coordinator-1.json").exists()


@pytest.mark.parametrize(
    ("conf", "awaits_nodes", "rejoin"),
    [
        ((), False, 90),
        ((("join_timeout_s", "50"),), False, 50),
        ((), True, meeting.NEVER_S),
        ((("join_timeout_s", "50"),), True, 50),
    ],
)
def test_the_rest_of_a_group_waits_for_those_it_lost_no_longer_than_was_planned(
    tmp_path: Path, conf: tuple[tuple[str, str], ...], awaits_nodes: bool, rejoin: int
) -> None:
    task = meeting_of(tmp_path, conf, awaits_nodes=awaits_nodes).plan_round({})
    assert isinstance(task.node.rendezvous, Elastic)
    planned = dict(task.node.rendezvous.conf)
    CoordinatorProcess(
        pid=int(planned["coordinator_pid"]), port=task.node.rendezvous.endpoint_port
    ).stop()
    assert float(planned["rejoin_timeout_s"]) == rejoin


def test_a_claim_whose_node_died_before_it_served_is_passed_over(
    tmp_path: Path, short: None
) -> None:
    (tmp_path / "coordinator-0.json").touch()
    task = meeting_of(tmp_path).plan_round({})
    assert isinstance(task.node.rendezvous, Elastic)
    pid = int(dict(task.node.rendezvous.conf)["coordinator_pid"])
    CoordinatorProcess(pid=pid, port=task.node.rendezvous.endpoint_port).stop()
    assert (tmp_path / "coordinator-1.json").exists()


def test_a_node_whose_store_was_slow_to_start_goes_to_the_one_that_was_made_meanwhile(
    tmp_path: Path, store: CoordinatorProcess, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: list[CoordinatorProcess] = []

    def serve_late(*given: Any, **named: Any) -> CoordinatorProcess:
        slow.append(serve_forked(*given, **named))
        said = json.dumps(asdict(said_of(store)))
        (tmp_path / "coordinator-1.json").write_text(said)
        return slow[-1]

    (tmp_path / "coordinator-0.json").unlink()
    monkeypatch.setattr(meeting, "serve_forked", serve_late)
    task = meeting_of(tmp_path).plan_round({})
    assert isinstance(task.node.rendezvous, Elastic)
    assert task.node.rendezvous.endpoint_port == store.port
    assert not task.node.rendezvous.is_host
    assert not any(psutil.pid_exists(process.pid) for process in slow)
