"""The handler over a real coordinator, in threads: what torch's documentation promises."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

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
    made: list[RosterHandler] = []
    served: list[CoordinatorProcess] = []

    def make(nnodes: tuple[int, int] = (1, 1), **config: Any) -> RosterHandler:
        config.setdefault("fence_dir", str(tmp_path))
        if not served:
            served.append(serve(nnodes, **config))
        made.append(create_handler(params_of(served[0].port, nnodes, **config)))
        return made[-1]

    make.served = served  # type: ignore[attr-defined]
    yield make
    for handler in made:
        handler.end()
    for process in served:
        process.stop()


def serve(nnodes: tuple[int, int] = (1, 1), **config: Any) -> CoordinatorProcess:
    given = params_of(0, nnodes, **config).config
    rules = parse_rules(given, min_nodes=nnodes[0], max_nodes=nnodes[1])
    return serve_forked(0, rules, "run")


def together(*handlers: RosterHandler) -> list[RendezvousInfo]:
    """All of them in one rendezvous; raises what any of them raises."""
    results: dict[int, RendezvousInfo | Exception] = {}

    def join(number: int, handler: RosterHandler) -> None:
        try:
            results[number] = handler.next_rendezvous()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=join, args=pair) for pair in enumerate(handlers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    infos = []
    for number in range(len(handlers)):
        result = results[number]
        if isinstance(result, Exception):
            raise result
        infos.append(result)
    return infos


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
    infos = together(*(make((3, 3), node_index=index) for index in (2, 0, 1)))
    assert [info.rank for info in infos] == [2, 0, 1]
    assert {info.world_size for info in infos} == {3}
    masters = {str(info.bootstrap_store_info) for info in infos}
    assert len(masters) == 1


def test_a_single_node_re_forms_alone_and_as_often_as_it_asks(make):
    handler = make()
    for _ in range(6):
        assert handler.next_rendezvous().world_size == 1
    assert handler.status.faults == 5


def test_each_membership_has_a_generation_of_its_own_on_shared_storage(make, tmp_path):
    handler, generations = make(), []
    for _ in range(3):
        handler.next_rendezvous()
        assert handler.membership
        generations.append(handler.membership.generation)
    assert generations == [1, 2, 3]
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == ["00000001.json", "00000002.json", "00000003.json"]


def test_a_closed_run_raises_closed_for_all_who_ask(make):
    first, second = make(), make(node_index=1)
    assert not first.is_closed()
    first.set_closed()
    assert first.is_closed()
    wait_until(second.is_closed)
    for handler in (first, second):
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()


def test_a_node_that_shuts_down_after_success_closes_the_run(make):
    handler = make()
    handler.next_rendezvous()
    assert handler.shutdown()
    with pytest.raises(RendezvousClosedError):
        make().next_rendezvous()


def test_a_node_that_waits_in_vain_raises_timeout_and_closes_nothing(make):
    handler = make((2, 2), join_timeout_s=0.5)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        handler.next_rendezvous()
    handler.shutdown()
    together(make((2, 2)), make((2, 2), node_index=1))


def test_no_coordinator_raises_a_connection_error_within_the_limit():
    served = serve()
    served.stop()
    with pytest.raises(RendezvousConnectionError, match=str(served.port)):
        create_handler(params_of(served.port, connect_timeout_s=1.0))


def test_a_frozen_coordinator_is_a_connection_error_after_the_silence_limit(make):
    handler = make()
    handler.next_rendezvous()
    os.kill(make.served[0].pid, signal.SIGSTOP)
    with pytest.raises(RendezvousConnectionError, match="silent"):
        wait_until(handler.num_nodes_waiting)
    with pytest.raises(RendezvousConnectionError, match="did not answer within"):
        make(connect_timeout_s=0.5)


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


def test_what_a_host_serves_stays_until_who_waits_has_heard_that_the_run_is_over(tmp_path):
    host = create_handler(params_of(0, is_host=True, fence_dir=str(tmp_path)))
    host.next_rendezvous()
    config = {"node_index": 1, "fence_dir": str(tmp_path)}
    spare, heard = create_handler(params_of(host.port, **config)), list[Exception]()
    thread = threading.Thread(target=refused, args=(spare, heard))
    thread.start()
    wait_until(lambda: spare._wishes)
    time.sleep(0.2)
    assert host.shutdown()
    thread.join(10)
    assert [type(error) for error in heard] == [RendezvousClosedError]


def test_what_a_host_serves_that_waited_in_vain_stays_until_the_others_have_too(tmp_path):
    config = {"join_timeout_s": 0.5, "fence_dir": str(tmp_path)}
    host = create_handler(params_of(0, (3, 3), is_host=True, **config))
    config |= {"node_index": 1, "join_timeout_s": 2.0}
    other, heard = (
        create_handler(params_of(host.port, (3, 3), **config)),
        list[Exception](),
    )
    thread = threading.Thread(target=refused, args=(other, heard))
    thread.start()
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


def test_a_group_that_another_coordinator_has_fenced_out_is_closed(make, tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.agent.membership.coordinator.FENCE_LOOK_S", 0.05)
    handler = make()
    handler.next_rendezvous()
    assert handler.num_nodes_waiting() == 0
    Fence(tmp_path, "run").take("another coordinator")
    wait_until(handler.num_nodes_waiting)
    with pytest.raises(RendezvousClosedError, match="fenced"):
        handler.next_rendezvous()
    assert handler.status.closed == "fenced"


def test_a_woken_coordinator_takes_no_generation_beyond_that_of_another(make, tmp_path):
    """It re-forms at once, before it is time to look at the fence again."""
    handler = make()
    handler.next_rendezvous()
    others = Fence(tmp_path, "run").take("another coordinator")
    with pytest.raises(RendezvousClosedError, match="fenced"):
        handler.next_rendezvous()
    newest = Fence(tmp_path, "run").newest()
    assert newest
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
