"""Nodes as real processes over a real TCPStore: killed, frozen, woken, leaving, too many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.roster.store import StoreProcess, serve_forked
from tests.launcher.agent.roster.node_process import Node, Nodes, wait_until

DEADLINE_S = 60.0
"""For what has to come at all; how soon it comes is measured by ``benchmarks``."""


@pytest.fixture
def store() -> Iterator[StoreProcess]:
    process = serve_forked(0, "127.0.0.1")
    yield process
    process.stop()


@pytest.fixture
def nodes_of(tmp_path: Path, store: StoreProcess) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(least: int, most: int, **config: Any) -> Nodes:
        made.append(Nodes(tmp_path, store.port, (least, most), **config))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()


def all_in(nodes: list[Node], size: int) -> bool:
    return all(node.is_in(size) for node in nodes)


def test_survivors_of_a_killed_node_re_form_without_a_restart_counted_and_not_by_its_silence(
    nodes_of: Callable[..., Nodes],
) -> None:
    nodes = nodes_of(1, 3, detection_limit_s=600.0).start_group(3)
    killed_at = nodes[1].signal(signal.SIGKILL)
    rest = [nodes[0], nodes[2]]
    wait_until(lambda: all_in(rest, 2), DEADLINE_S)
    took_s = max(node.last()["at"] for node in rest) - killed_at
    print(f"killed: re-formed after {took_s:.2f} s")
    assert rest[0].story()[-2]["counts"] == {}
    assert [node.last()["rank"] for node in rest] == [0, 1]


@pytest.mark.slow
def test_a_frozen_node_is_lost_and_rejoins_as_a_newcomer_under_a_later_generation(
    nodes_of: Callable[..., Nodes],
) -> None:
    nodes = nodes_of(1, 3).start_group(3)
    nodes[0].signal(signal.SIGSTOP)
    rest = nodes[1:]
    wait_until(lambda: all_in(rest, 2), DEADLINE_S)
    without = rest[0].last()["generation"]
    nodes[0].signal(signal.SIGCONT)
    wait_until(lambda: all_in(nodes, 3), DEADLINE_S)
    generations = {node.last()["generation"] for node in nodes}
    assert len(generations) == 1
    assert generations.pop() > without > nodes[0].story()[0]["generation"]
    assert [node.last()["rank"] for node in nodes] == [0, 1, 2]


@pytest.mark.slow
def test_the_loss_of_the_store_reaches_all_nodes_as_a_connection_error(
    nodes_of: Callable[..., Nodes], store: StoreProcess
) -> None:
    nodes = nodes_of(1, 2, silence_limit_s=600.0).start_group(2)
    store.stop()
    wait_until(lambda: all(n.last()["what"] == "refused" for n in nodes), DEADLINE_S)
    assert {node.last()["kind"] for node in nodes} == {"RendezvousConnectionError"}


@pytest.mark.slow
def test_a_frozen_store_reaches_all_nodes_as_a_connection_error_after_the_silence_limit(
    nodes_of: Callable[..., Nodes], store: StoreProcess
) -> None:
    nodes = nodes_of(1, 2, silence_limit_s=1.5).start_group(2)
    os.kill(store.pid, signal.SIGSTOP)
    wait_until(lambda: all(n.last()["what"] == "refused" for n in nodes), DEADLINE_S)
    assert {node.last()["kind"] for node in nodes} == {"RendezvousConnectionError"}
    assert "silent" in nodes[0].last()["text"]


@pytest.mark.slow
def test_a_store_that_is_frozen_from_the_start_is_given_up_in_time(
    nodes_of: Callable[..., Nodes], store: StoreProcess
) -> None:
    os.kill(store.pid, signal.SIGSTOP)
    node = nodes_of(1, 2, connect_timeout_s=2.0).start(0)
    wait_until(lambda: node.last()["what"] == "refused", DEADLINE_S)
    assert node.last()["kind"] == "RendezvousConnectionError"
