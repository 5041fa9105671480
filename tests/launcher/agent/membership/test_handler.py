"""The handler over a real coordinator, in threads: what torch's documentation promises."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from launcher.agent.membership import coordinator
from launcher.agent.membership.handler import ReplacedError, RosterHandler, create_handler
from launcher.agent.membership.process import CoordinatorProcess, serve_forked
from launcher.agent.membership.settings import parse_rules
from launcher.contract.generations import FOLDER, Fence
from tests.waiting import wait_until

Make = Callable[..., RosterHandler]


def params_of(port: int, nnodes: tuple[int, int] = (1, 1), **config: Any) -> RendezvousParameters:
    config = {"node_index": 0, "detection_limit_s": 1.0, "last_call_s": 0.3} | config
    return RendezvousParameters(
        "roster", f"127.0.0.1:{port}", "run", *nnodes, "127.0.0.1", **config
    )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Handlers of one run; the first one's settings are those of its coordinator."""
    with ExitStack() as ending:
        ports: list[int] = []

        def make(nnodes: tuple[int, int] = (1, 1), **config: Any) -> RosterHandler:
            config.setdefault("fence_dir", str(tmp_path))
            if not ports:
                served = serve(nnodes, **config)
                ending.callback(served.stop)
                ports.append(served.port)
            handler = create_handler(params_of(ports[0], nnodes, **config))
            ending.callback(handler.end)
            return handler

        yield make


def serve(nnodes: tuple[int, int] = (1, 1), **config: Any) -> CoordinatorProcess:
    given = params_of(0, nnodes, **config).config
    rules = parse_rules(given, min_nodes=nnodes[0], max_nodes=nnodes[1])
    return serve_forked(0, rules, "run")


def together(*handlers: RosterHandler) -> list[RendezvousInfo]:
    """All of them in one rendezvous; raises what any of them raises."""
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda handler: handler.next_rendezvous(), handlers)]


def test_torch_gets_the_handler_by_its_registered_name(monkeypatch):
    # As other tests of this process register theirs.
    monkeypatch.setattr(rendezvous_handler_registry, "_registry", {})
    served = serve()
    rendezvous_handler_registry.register("roster", create_handler)
    handler = get_rendezvous_handler(params_of(served.port))
    assert isinstance(handler, RosterHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("roster", "run")
    assert handler.use_agent_store is False
    handler.shutdown()
    served.stop()


def test_all_nodes_get_ranks_by_index_and_one_master_address(make):
    nodes = [make((3, 3), node_index=index, workers=1 + index) for index in (2, 0, 1)]
    infos = together(*nodes)
    assert [info.rank for info in infos] == [2, 0, 1]
    assert {info.world_size for info in infos} == {3}
    assert len({str(info.bootstrap_store_info) for info in infos}) == 1
    # What torch's agent reads: its first worker's rank and the number of workers, twice.
    assert [json.loads(info.store.get("assigned")) for info in infos] == [
        [3, 6, 3, 6],
        [0, 6, 0, 6],
        [1, 6, 1, 6],
    ]


def test_a_single_node_re_forms_as_often_as_it_asks_each_time_with_another_generation(
    make, tmp_path
):
    handler = make()
    for number in (1, 2, 3):
        assert handler.next_rendezvous().world_size == 1
        assert (handler.membership.generation, handler.status.faults) == (number, number - 1)
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == ["00000001.json", "00000002.json", "00000003.json"]


@pytest.mark.parametrize("ends", [RosterHandler.set_closed, RosterHandler.shutdown])
def test_a_run_that_a_node_closes_or_completes_is_closed_for_all_who_ask(make, ends):
    first, second = make(), make(node_index=1)
    first.next_rendezvous()
    assert not first.is_closed()
    ends(first)
    assert first.is_closed()
    with pytest.raises(RendezvousClosedError):
        second.next_rendezvous()


def test_a_node_that_waits_in_vain_raises_timeout_and_closes_nothing(make):
    handler = make((2, 2), join_timeout_s=0.5)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        handler.next_rendezvous()
    handler.shutdown()
    together(make((2, 2)), make((2, 2), node_index=1))


def test_a_host_serves_the_run_itself_and_others_find_it(tmp_path):
    host = create_handler(params_of(0, (2, 2), is_host=True, fence_dir=str(tmp_path)))
    port = host.port
    other = create_handler(params_of(port, (2, 2), node_index=1, fence_dir=str(tmp_path)))
    assert [info.rank for info in together(host, other)] == [0, 1]
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda handler: handler.shutdown(), (host, other)))


def refused(node: RosterHandler, heard: list[Exception]) -> None:
    """A node that waits in vain, and goes as torch's launcher does."""
    try:
        node.next_rendezvous()
    except Exception as error:
        heard.append(error)
        node.shutdown()


def wait_in_vain(node: RosterHandler, heard: list[Exception]) -> threading.Thread:
    thread = threading.Thread(target=refused, args=(node, heard))
    thread.start()
    wait_until(lambda: node._wishes)
    return thread


def test_what_a_host_serves_stays_until_who_waits_has_heard_that_the_run_is_over(tmp_path):
    host, heard = create_handler(params_of(0, is_host=True)), list[Exception]()
    host.next_rendezvous()
    thread = wait_in_vain(create_handler(params_of(host.port, node_index=1)), heard)
    time.sleep(0.2)
    assert host.shutdown()
    thread.join(10)
    assert [type(error) for error in heard] == [RendezvousClosedError]


def test_what_a_host_serves_that_waited_in_vain_stays_until_the_others_have_too(tmp_path):
    config, heard = {"join_timeout_s": 2.0, "node_index": 1}, list[Exception]()
    host = create_handler(params_of(0, (3, 3), is_host=True, join_timeout_s=0.5))
    thread = wait_in_vain(create_handler(params_of(host.port, (3, 3), **config)), heard)
    refused(host, heard)
    thread.join(10)
    assert [type(error) for error in heard] == [RendezvousTimeoutError] * 2


def test_a_host_finds_the_coordinator_that_serves_already():
    served = serve()
    handler = create_handler(params_of(served.port, is_host=True))
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()
    served.stop()


def test_of_two_nodes_with_one_index_the_first_ends_with_an_error_that_names_it(make):
    first = make((1, 2))
    first.next_rendezvous()
    second = make((1, 2))
    joining = threading.Thread(target=second.next_rendezvous, daemon=True)
    joining.start()
    wait_until(first.num_nodes_waiting)
    with pytest.raises(ReplacedError, match="node_index 0"):
        first.next_rendezvous()
    joining.join(10)
    assert second.membership is not None


def test_a_fence_that_cannot_be_written_is_a_state_error(make, tmp_path):
    (tmp_path / "file").write_text("")
    handler = make(fence_dir=str(tmp_path / "file"))
    with pytest.raises(RendezvousStateError, match="generation"):
        handler.next_rendezvous()


@pytest.mark.parametrize("looks", [True, False])
def test_a_group_that_another_coordinator_has_fenced_out_is_closed(
    make, tmp_path, monkeypatch, looks
):
    """Also if it re-forms before it is time to look: it takes no generation beyond the other's."""
    monkeypatch.setattr(coordinator, "FENCE_LOOK_S", 0.05 if looks else 100.0)
    handler = make()
    handler.next_rendezvous()
    assert handler.num_nodes_waiting() == 0
    others = Fence(tmp_path, "run").take("another coordinator")
    if looks:
        wait_until(handler.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError, match="fenced"):
        handler.next_rendezvous()
    assert handler.status.closed == "fenced"
    newest = Fence(tmp_path, "run").newest()
    assert newest is not None
    assert newest.number == others


def test_without_a_fence_the_majority_rule_is_said_aloud(make, caplog):
    with caplog.at_level(logging.WARNING):
        make((1, 3), fence_dir="")
    assert "only more than half of the last nodes, or more than 2, can go on" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        make((2, 3), node_index=1, fence_dir="")
    assert "fences" not in caplog.text, "any two groups of 2 of 3 share a node"


def test_held_newcomers_are_told_of_and_come_in_after_admit(make):
    first = make((1, 2), admit_limit_s=120)
    first.next_rendezvous()
    second = make((1, 2), node_index=1, admit_limit_s=120)
    joining = threading.Thread(target=second.next_rendezvous, daemon=True)
    joining.start()
    wait_until(lambda: first.status.newcomers == 1)
    assert first.num_nodes_waiting() == 0
    first.admit()
    wait_until(first.num_nodes_waiting)
    assert first.next_rendezvous().world_size == 2
    joining.join(10)
    assert first.status.faults == 0
