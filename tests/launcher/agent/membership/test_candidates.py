"""Nodes that know no address meet through a folder, again after losses."""

import json
import os
import re
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
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.node_plan import (
    DETECTION_LIMIT_S,
    AgentSettings,
    Elastic,
    NodeTask,
    StoreEndpoint,
)
from launcher.contract.waits import LOOK_S
from tests.launcher.agent.place import free_port
from tests.launcher.node_plans import node_plan
from tests.waiting import StoppedClock, wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    file = tmp_path / "coordinator-0.json"
    file.touch()
    found = serve_forked(0, Rules(min_nodes=1, max_nodes=2), "run", sign=file)
    yield found
    found.stop()


def announce(folder: Path, store: CoordinatorProcess, **others: Any) -> Announcement:
    """As the node writes it that serves it."""
    known = {"addresses": (LOOPBACK,), "port": store.port, "host": "n1", "node_index": 1}
    known |= {"machine": name_machine(), "run_id": "run", "origin": store.origin}
    said = Announcement(**{**known, **others})
    (folder / "coordinator-0.json").write_text(json.dumps(asdict(said)))
    return said


def meeting_of(
    folder: Path, clock: Clock, conf: tuple[tuple[str, str], ...] = (), **settings: Any
) -> Meeting:
    agent = AgentSettings(meet_dir=str(folder), **settings)
    return Meeting(NodeTask(node=node_plan({"conf": conf}), settings=agent), clock)


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
    node = meeting_of(tmp_path, StoppedClock()).plan_round().node
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
    for machine in ("~another", ""):
        assert reach(announce(tmp_path, store, addresses=here, machine=machine)) == {}


def test_a_store_that_lives_but_cannot_be_reached_is_not_replaced(tmp_path, store, monkeypatch):
    monkeypatch.setattr(candidates, "ANSWER_LIMIT_S", 0.2)
    file = tmp_path / "coordinator-0.json"

    def live_on(now: float) -> None:
        os.utime(file, (now, now))
        clock.now += 30.0 - LOOK_S

    clock = StoppedClock(on_sleep=live_on)
    told = {"machine": "another", "addresses": ("203.0.113.9",), "port": 7}
    for said, why in [
        (announce(tmp_path, store, **told), "the run's coordinator of node 1 on n1 is alive, but "),
        (None, f"{file} does not say where the run's coordinator is"),
    ]:
        clock.now = 0.0
        file.write_text(json.dumps(asdict(said)) if said else "")
        with pytest.raises(ConnectionError, match=f"^{why}") as raised:
            meeting_of(tmp_path, clock).plan_round()
        if said:
            assert re.search(r"but port 7 of 203\.0\.113\.9 \(.+\) cannot be", str(raised.value))
        assert clock.now == 60.0
    assert not (tmp_path / "coordinator-1.json").exists()


@pytest.mark.parametrize(
    ("reached", "address", "error", "after_s"),
    [
        (True, "127.0.0.2", ConnectionRefusedError(), 0.0),
        (True, "127.0.0.2", TimeoutError(), 6.0),
        (False, "127.0.0.2", ConnectionRefusedError(), 6.0),
        (False, LOOPBACK, ConnectionRefusedError(), 0.0),
        (False, "", None, 6.0),
    ],
)
def test_a_store_that_is_gone_is_replaced_at_once_where_it_must_answer_else_without_a_sign_of_life(
    tmp_path, store, monkeypatch, reached, address, error, after_s
):
    """A firewall may refuse for one that was never reached; a node may die before it serves."""
    store.stop()
    if address:
        announce(tmp_path, store)
    clock = StoppedClock()
    meeting = meeting_of(tmp_path, clock)
    if reached:
        monkeypatch.setattr(candidates, "reach", lambda *_: {address: None})
        assert port_of(meeting) == (store.port, False)
    monkeypatch.setattr(candidates, "reach", lambda *_: {address: error})
    assert port_of(meeting)[1]
    assert clock.now == after_s
    assert (tmp_path / "coordinator-1.json").exists()


@pytest.mark.parametrize(("old", "numbers"), [((), "01"), (("9", "10", "x"), ("11", "12"))])
def test_nodes_meet_at_whoever_came_first_and_at_the_next_after_a_loss(tmp_path, old, numbers):
    folder = tmp_path / "of" / "run"
    for name in old:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"coordinator-{name}.json").touch()
    first, second = (meeting_of(folder, StoppedClock()) for _ in range(2))
    for serves, joins in [(first, second), (second, first)]:
        met = [one.plan_round().node.rendezvous for one in (serves, joins)]
        assert [(one.served is not None) for one in (serves, joins)] == [True, False]
        assert len({one.endpoint_port for one in met if isinstance(one, Elastic)}) == 1
        assert serves.served
        serves.served.stop()
    names = {f"coordinator-{name}.json" for name in (*old, *numbers)}
    assert {path.name for path in folder.iterdir()} == names


def test_a_coordinator_shows_that_it_lives_by_the_file_that_names_it(tmp_path, store):
    os.utime(file := tmp_path / "coordinator-0.json", (0, 0))
    wait_until(lambda: file.stat().st_mtime > 0)


@pytest.mark.parametrize(
    ("conf", "awaits_nodes", "join", "rejoin", "connect"),
    [
        ((), False, 600, 90, 15),
        ((("join_timeout_s", "50"),), False, 50, 50, 15),
        ((), True, candidates.NEVER_S, candidates.NEVER_S, 15),
        ((("join_timeout_s", "50"), ("connect_timeout_s", "5")), True, 50, 50, 5),
    ],
)
def test_the_rest_of_a_group_waits_for_those_it_lost_no_longer_than_was_planned(
    tmp_path, conf, awaits_nodes, join, rejoin, connect
):
    rules = meeting_of(tmp_path, StoppedClock(), conf, awaits_nodes=awaits_nodes).rules
    assert (rules.join_timeout_s, rules.rejoin_timeout_s, rules.connect_timeout_s) == (
        *(join, rejoin),
        connect,
    )


def test_of_two_nodes_that_claim_a_number_at_once_one_does_not_serve(tmp_path, store):
    meeting = meeting_of(tmp_path, StoppedClock())
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


def candidates_at(*ports: int, clock: Clock | None = None, **rendezvous: Any) -> Candidates:
    """Those of a plan whose first node serves at the first port, and so on."""
    stores = [StoreEndpoint(host=LOOPBACK, port=port, node_index=n) for n, port in enumerate(ports)]
    first = {"endpoint_host": LOOPBACK, "endpoint_port": ports[0], "id": "run", **rendezvous}
    task = NodeTask(node=node_plan(first), settings=AgentSettings(stores=tuple(stores)))
    return Candidates(task, clock or SystemClock())


@pytest.mark.parametrize(("others", "next_port"), [((), 1), ((2,), 2)])
def test_a_node_goes_to_the_candidate_that_serves_already_but_not_to_the_one_that_it_lost(
    store, others, next_port
):
    of_plan = candidates_at(1, store.port, *others)
    assert [port_of(of_plan)[0] for _ in range(2)] == [store.port, next_port]
    assert of_plan.rules.connect_timeout_s == candidates.CONNECT_LIMIT_S


def test_a_node_that_came_back_looks_for_the_others_before_it_goes_to_the_first(store):
    port, clock = free_port(), StoppedClock()
    of_plan = candidates_at(port, store.port, clock=clock)

    def come_back() -> tuple[int, float]:
        rendezvous = of_plan.plan_round(elsewhere=True).node.rendezvous
        assert isinstance(rendezvous, Elastic)
        return rendezvous.endpoint_port, clock.now

    assert [come_back(), come_back()] == [(store.port, 0.0)] * 2
    store.stop()
    assert come_back() == (port, DETECTION_LIMIT_S + 10.0)


def test_after_a_loss_comes_the_next_candidate_and_the_first_one_again():
    ports = free_port(), free_port()
    of_plan = candidates_at(*ports, is_host=True)
    expected = [(ports[0], True), (ports[1], False), (ports[0], True)]
    assert [port_of(of_plan) for _ in expected] == expected
