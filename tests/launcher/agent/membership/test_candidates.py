"""Nodes that know no address meet through a folder, again after losses."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.agent.addresses import LOOPBACK, name_machine, own_addresses
from launcher.agent.membership import candidates
from launcher.agent.membership.candidates import (
    Announcement,
    Candidates,
    Meeting,
    reach,
)
from launcher.agent.membership.group import Rules
from launcher.agent.membership.process import CoordinatorProcess, serve_forked
from launcher.contract.agent_settings import AgentSettings, NodeTask, StoreEndpoint
from launcher.contract.clock import SystemClock
from launcher.contract.node_plan import Elastic
from tests.launcher.agent.place import free_port
from tests.launcher.node_plans import node_plan


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    file = tmp_path / "coordinator-0.json"
    file.touch()
    found = serve_forked(0, Rules(min_nodes=1, max_nodes=2), "run", sign=file)
    yield found
    found.stop()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "GONE_S", 2.5)
    monkeypatch.setattr(candidates, "REACH_LIMIT_S", 4.0)


def announce(folder: Path, store: CoordinatorProcess, **others: Any) -> Announcement:
    """As the node writes it that serves it."""
    known = {"addresses": (LOOPBACK,), "port": store.port, "host": "n1", "node_index": 1}
    known |= {"machine": name_machine(), "run_id": "run", "origin": store.origin}
    said = Announcement(**{**known, **others})
    (folder / "coordinator-0.json").write_text(json.dumps(asdict(said)))
    return said


def meeting_of(folder: Path, conf: tuple[tuple[str, str], ...] = (), **settings: Any) -> Meeting:
    agent = AgentSettings(meet_dir=str(folder), **settings)
    return Meeting(NodeTask(node=node_plan({"conf": conf}), settings=agent), SystemClock())


def port_of(candidates: Candidates) -> tuple[int, bool]:
    """Where the next coordinator is, and whether it was served here; then it is ended."""
    rendezvous = candidates.plan_round().node.rendezvous
    assert isinstance(rendezvous, Elastic)
    if candidates.served:
        candidates.served.stop()
    return rendezvous.endpoint_port, candidates.served is not None


def test_a_store_is_reached_at_the_first_address_that_answers(tmp_path, store):
    wheres = ("203.0.113.9", *own_addresses(), LOOPBACK)
    first, *others = reach(announce(tmp_path, store, addresses=wheres)).values()
    assert isinstance(first, OSError)
    assert {*others} == {None}
    node = meeting_of(tmp_path).plan_round().node
    assert isinstance(node.rendezvous, Elastic)
    assert node.rendezvous.endpoint_host == wheres[1]
    assert node.local_addr == (own_addresses() or (node_plan({}).local_addr,))[0]


@pytest.mark.parametrize(
    ("others", "token", "whys"),
    [
        ({"origin": "other"}, "", ["another coordinator answers"]),
        ({}, "another token", ["it ended the connection: another run, or another token"]),
        ({"port": 1}, "", ["[Errno 111] Connection refused"]),
    ],
)
def test_another_store_is_not_taken_for_it(tmp_path, store, others, token, whys):
    assert [*map(str, reach(announce(tmp_path, store, **others), token).values())] == whys


def test_the_store_of_another_machine_is_not_looked_for_on_this_one(tmp_path, store):
    # Asked for now: tests beside this one give this machine addresses, and take them away.
    here = (*own_addresses(), LOOPBACK)
    assert reach(announce(tmp_path, store, addresses=here, machine="another")) == {}


def test_a_store_that_lives_but_cannot_be_reached_is_not_replaced(tmp_path, store, short):
    announce(tmp_path, store, machine="another", addresses=("203.0.113.9",))
    with pytest.raises(ConnectionError, match=r"node 1 on n1 is alive.*203\.0\.113\.9 \("):
        meeting_of(tmp_path).plan_round()
    assert not (tmp_path / "coordinator-1.json").exists()


@pytest.mark.parametrize("announced", [False, True])
def test_a_store_that_shows_no_sign_of_life_is_replaced(
    tmp_path, store, short, monkeypatch, announced
):
    """Also if its node died before it served."""
    store.stop()
    # There is no other machine here that could refuse.
    monkeypatch.setattr(candidates, "reach", lambda *_: {"203.0.113.9": ConnectionRefusedError()})
    if announced:
        announce(tmp_path, store)
    began = time.monotonic()
    assert port_of(meeting_of(tmp_path))[1]
    assert 2.5 <= time.monotonic() - began < 7.5
    assert (tmp_path / "coordinator-1.json").exists()


@pytest.mark.parametrize(
    ("conf", "awaits_nodes", "rejoin"),
    [
        ((), False, 90),
        ((("join_timeout_s", "50"),), False, 50),
        ((), True, candidates.NEVER_S),
        ((("join_timeout_s", "50"),), True, 50),
    ],
)
def test_the_rest_of_a_group_waits_for_those_it_lost_no_longer_than_was_planned(
    tmp_path, conf, awaits_nodes, rejoin
):
    assert meeting_of(tmp_path, conf, awaits_nodes=awaits_nodes).rules.rejoin_timeout_s == rejoin


def test_of_two_nodes_that_claim_a_number_at_once_one_does_not_serve(tmp_path, store):
    meeting = meeting_of(tmp_path)
    assert meeting._claim(tmp_path / "coordinator-0.json") is None
    assert meeting.served is None


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_host_of_a_plan_serves_for_this_machine_alone_unless_something_serves(store, is_taken):
    at = {"endpoint_host": LOOPBACK, "endpoint_port": store.port if is_taken else 0}
    task = NodeTask(node=node_plan({**at, "is_host": True}))
    of_plan = Candidates(task, SystemClock())
    rendezvous = of_plan.plan_round().node.rendezvous
    assert isinstance(rendezvous, Elastic)
    if is_taken:
        assert (rendezvous.endpoint_port, of_plan.served) == (store.port, None)
        return
    assert of_plan.served
    ports = psutil.Process(of_plan.served.pid).net_connections("tcp")
    heard = [one.laddr for one in ports if one.status == psutil.CONN_LISTEN]
    assert heard == [(LOOPBACK, rendezvous.endpoint_port)]
    of_plan.served.stop()


@pytest.mark.parametrize(("others", "next_port"), [((), 1), ((2,), 2)])
def test_a_node_goes_to_the_candidate_that_serves_already_but_not_to_the_one_that_it_lost(
    store, others, next_port
):
    ports = (1, store.port, *others)
    stores = [StoreEndpoint(host=LOOPBACK, port=port, node_index=1) for port in ports]
    task = NodeTask(node=node_plan({"id": "run"}), settings=AgentSettings(stores=tuple(stores)))
    of_plan = Candidates(task, SystemClock())
    assert [port_of(of_plan)[0] for _ in range(2)] == [store.port, next_port]
    assert of_plan.rules.connect_timeout_s == candidates.CONNECT_LIMIT_S


def test_after_a_loss_comes_the_next_candidate_and_the_first_one_again():
    ports = [free_port(), free_port()]
    stores = [
        StoreEndpoint(host=LOOPBACK, port=port, node_index=index)
        for index, port in enumerate(ports)
    ]
    first = {"endpoint_host": LOOPBACK, "endpoint_port": ports[0], "is_host": True}
    task = NodeTask(node=node_plan(first), settings=AgentSettings(stores=tuple(stores)))
    of_plan = Candidates(task, SystemClock())
    expected = [(ports[0], True), (ports[1], False), (ports[0], True)]
    assert [port_of(of_plan) for _ in expected] == expected
