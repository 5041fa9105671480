"""Clients of a real coordinator, in threads: ranks, endings, and what is refused."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from launcher.agent.addresses import LOOPBACK
from launcher.agent.engine.rendezvous import describe
from launcher.agent.membership import coordinator
from launcher.agent.membership.client import Client, ReplacedError
from launcher.agent.membership.group import Last, Member, RoundCause
from launcher.agent.membership.process import ask
from launcher.agent.membership.wire import WireError
from launcher.contract.generations import Fence
from tests.launcher.agent.membership.conftest import RUN, TOKEN, together
from tests.waiting import wait_until


def test_all_nodes_get_ranks_by_index_and_one_master_address(make):
    bench = make(3, 3)
    told = together(*(bench.node(index, workers=1 + index) for index in (2, 0, 1)))
    assert [mine.rank for mine in told] == [2, 0, 1]
    assert {mine.size for mine in told} == {3}
    assert len({str(mine.first) for mine in told}) == 1
    # What torch's agent reads: its first worker's rank and the number of workers, twice.
    ranks = [json.loads(describe(mine).store.get("assigned")) for mine in told]
    assert ranks == [[3, 6, 3, 6], [0, 6, 0, 6], [1, 6, 1, 6]]


def fail(node: Client) -> bool:
    """As torch's launcher goes when workers have failed for good."""
    try:
        raise ChildFailedError("train.py", {0: ProcessFailure(0, 1, 1, "<N/A>")})
    except ChildFailedError:
        return node.shutdown()


@pytest.mark.parametrize(
    ("ends", "closed"),
    [
        (lambda node: node.close("finished"), "finished"),
        (Client.shutdown, "finished"),
        (fail, "failed"),
    ],
)
def test_a_run_that_a_node_closes_or_ends_is_closed_for_all_who_ask(make, ends, closed):
    bench = make()
    first, second = bench.node(), bench.node(1)
    first.meet()
    assert not first.is_closed()
    here = LOOPBACK, bench.served.port, RUN, 5.0, TOKEN
    assert ask(*here) == bench.served.origin
    assert ends(first) is True
    assert first.status.closed == closed
    with pytest.raises(RendezvousClosedError, match=f"the run is closed: {closed}"):
        second.meet()
    with pytest.raises(WireError, match="the run is closed there"):
        ask(*here)
    for node in (first, second):
        node.end()
    wait_until(lambda: not {"membership", "alive"} & {one.name for one in threading.enumerate()})


def test_who_waits_is_told_at_once_and_goes_when_it_is_woken(make):
    bench = make(2, 2, detection_limit_s=60.0)
    first, second = bench.node(), bench.node(1)
    over: list[bool] = []
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(first.meet, lambda: over)
        wait_until(lambda: first._wishes)
        over.append(True)
        first.wake()
        assert waits.result(10) is None
        told = [pool.submit(node.meet) for node in (first, second)]
        assert [mine.result(10).rank for mine in told] == [0, 1]


def test_a_newcomer_expects_its_place_in_a_group_that_heals(make):
    bench = make(1, 3, last_call_s=0.0)
    (first,) = bench.meet(0)
    second = bench.node(1, workers=2)
    assert not second.may_expect
    first.say("heals")
    wait_until(lambda: second.may_expect)
    assert not first.may_expect
    mine = second.expect()
    place = (mine.generation, mine.rank, mine.size, mine.cause, mine.before, mine.workers)
    assert place == (1, 1, 3, RoundCause.JOINED, 2, 6)
    assert mine.first == Member(second.name, LOOPBACK, mine.first.port, 0, 2)
    first.close("failed")
    wait_until(second.is_closed)
    assert not second.may_expect


def test_the_last_membership_counts_who_has_neither_left_nor_finished(make):
    stays, goes = make(1, 2).meet(0, 1)
    assert stays.last == Last(generation=1, majority_of=2)
    goes.say("finish")
    wait_until(lambda: stays.status.finished)
    assert stays.last == Last(generation=1, majority_of=1, finished=1)


def test_a_node_that_waits_in_vain_raises_timeout_and_closes_nothing(make):
    bench = make(2, 2, join_timeout_s=0.5)
    node = bench.node()
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        node.meet()
    node.shutdown()
    bench.meet(0, 1)


def wait_in_vain(node: Client) -> type[Exception] | None:
    """As torch's launcher goes when there is no rendezvous."""
    try:
        node.meet()
    except Exception as error:
        node.shutdown()
        return type(error)
    return None


@pytest.mark.parametrize(
    ("nnodes", "error"), [((1, 1), RendezvousClosedError), ((3, 3), RendezvousTimeoutError)]
)
def test_what_a_host_serves_stays_until_who_waits_has_heard_how_it_ends(make, nnodes, error):
    bench = make(*nnodes)
    host = bench.node(served=bench.serve(), join_timeout_s=0.5)
    if nnodes == (1, 1):
        host.meet()
    other = bench.node(1, port=host.port, join_timeout_s=2.0)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(wait_in_vain, other)
        wait_until(lambda: other._wishes)
        if nnodes == (1, 1):
            time.sleep(0.2)
            assert host.shutdown()
        else:
            assert wait_in_vain(host) is error
        assert waits.result(10) is error


def test_a_host_does_not_wait_for_one_that_falls_silent_when_the_run_is_over(make, monkeypatch):
    bench = make(2, 2, detection_limit_s=1.0)
    host = bench.node(served=bench.serve())
    other = bench.node(1, port=host.port)
    together(host, other)
    other.say("finish")
    monkeypatch.setattr(other, "_send", lambda message: None)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(host.shutdown).result(60)


def test_of_two_nodes_with_one_index_the_first_ends_with_an_error_that_names_it(make, tmp_path):
    bench = make(1, 2, fence_dir=str(tmp_path))
    (first,) = bench.meet(0)
    second = bench.node(0)
    joining = threading.Thread(target=second.meet, daemon=True)
    joining.start()
    wait_until(first.must_meet)
    with pytest.raises(ReplacedError, match="node_index 0"):
        first.meet()
    joining.join(10)
    assert second.membership is not None
    wait_until(lambda: first.is_left_behind)
    assert not second.is_left_behind


def test_a_fence_that_cannot_be_written_is_a_state_error(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousStateError, match="generation"):
        make(fence_dir=str(tmp_path / "file")).meet(0)


def test_a_run_that_another_group_trained_to_its_end_is_not_trained_again(
    make, tmp_path, monkeypatch
):
    monkeypatch.setattr(coordinator, "RARE_LOOK_S", 100.0)
    bench = make(fence_dir=str(tmp_path))
    first, second = bench.node(), bench.node(port=bench.serve().port)
    assert [node.meet().generation for node in (first, second)] == [1, 2]
    second.shutdown()
    wait_until(lambda: Fence(tmp_path, RUN).is_finished(2))
    with pytest.raises(RendezvousClosedError, match="the run is closed: finished"):
        first.meet()


def test_a_group_is_closed_with_the_name_of_another_run_that_takes_its_folder(
    make, tmp_path, monkeypatch
):
    monkeypatch.setattr(coordinator, "RARE_LOOK_S", 0.05)
    (node,) = make(fence_dir=str(tmp_path)).meet(0)
    Fence(tmp_path, "array-2").take_next("another coordinator")
    wait_until(node.must_meet)
    assert node.status.closed == "other run: array-2"


@pytest.mark.parametrize("looks", [True, False])
def test_a_group_that_another_coordinator_has_fenced_out_is_closed(
    make, tmp_path, monkeypatch, looks
):
    """Also if it re-forms before it is time to look: it takes no generation beyond the other's."""
    monkeypatch.setattr(coordinator, "RARE_LOOK_S", 0.05 if looks else 100.0)
    (node,) = make(fence_dir=str(tmp_path)).meet(0)
    assert node.must_meet() is False
    others = Fence(tmp_path, RUN).take_next("another coordinator")
    if looks:
        wait_until(node.must_meet)
    with pytest.raises(RendezvousClosedError, match="fenced"):
        node.meet()
    assert node.status.closed == "fenced"
    newest = Fence(tmp_path, RUN).newest()
    assert newest is not None
    assert newest.number == others


def test_without_a_fence_the_majority_rule_is_said_aloud(make, caplog):
    with caplog.at_level(logging.WARNING):
        make(1, 3).node()
    assert "only more than half of the last nodes, or more than 2, can go on" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        make(2, 3).node()
    assert "fences" not in caplog.text, "any two groups of 2 of 3 share a node"
