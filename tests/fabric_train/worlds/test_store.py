"""The store of a world: rank 0 comes late, dies while the others come, or cannot serve."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from fabric_train.worker_env import World
from fabric_train.worlds import store as store_of_world
from fabric_train.worlds.store import STORE_LIMIT_S, open_store, wait_for_all
from tests.fabric_train.forked import find_free_port
from tests.waiting import wait_until


def place(rank: int, port: int) -> World:
    numbers = {"rank": rank, "local_rank": 0, "world_size": 2, "local_world_size": 1}
    return World(**numbers, master_addr="127.0.0.1", master_port=port)


def test_all_wait_for_rank_0_and_then_for_all():
    port = find_free_port()
    first, second = place(0, port), place(1, port)
    dials: list[None] = []
    with ThreadPoolExecutor() as others:
        other = others.submit(open_store, second, lambda: bool(dials.append(None)))
        wait_until(lambda: len(dials) > 1, "dialled again")
        store = open_store(first, lambda: False)
        client = other.result(60.0)
    assert store.timeout == client.timeout == timedelta(seconds=STORE_LIMIT_S)
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistError):
        wait_for_all(store, first)
    wait_for_all(client, second)
    wait_for_all(store, first)


def test_rank_0_serves_before_another_has_come(monkeypatch):
    monkeypatch.setattr(store_of_world, "STORE_LIMIT_S", 5.0)
    first = place(0, find_free_port())
    wait_for_all(open_store(first, lambda: False), replace(first, world_size=1))


def test_who_comes_before_rank_0_dials_again_soon():
    dials: list[None] = []
    began_at = time.monotonic()
    with pytest.raises(dist.DistNetworkError, match="no store at"):
        open_store(place(1, find_free_port()), lambda: len(dials.append(None) or dials) > 40)
    assert time.monotonic() - began_at < 20, "0.2 s on a machine that does nothing else"


def test_a_rank_0_whose_port_is_taken_says_so_at_once():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(dist.DistNetworkError, match="EADDRINUSE"),
    ):
        open_store(place(0, taken.getsockname()[1]), lambda: False)


def test_a_rank_0_that_dies_after_it_was_dialled_is_not_waited_for():
    server = socket.create_server(("127.0.0.1", 0))
    died = threading.Event()

    def die() -> None:
        server.accept()[0].close()
        server.close()
        died.set()

    threading.Thread(target=die).start()
    port = server.getsockname()[1]
    with pytest.raises(dist.DistNetworkError, match=f"no store at 127.0.0.1:{port}"):
        open_store(place(1, port), died.is_set)
