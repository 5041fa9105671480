"""The group of a world: its store, where rank 0 comes late, dies or cannot serve; and its end."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from fabric_train.worker_env import World
from fabric_train.worlds import group
from fabric_train.worlds.group import (
    STORE_LIMIT_S,
    Breaker,
    is_group_failure,
    list_connections,
    open_store,
    wait_for_all,
)
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
    monkeypatch.setattr(group, "STORE_LIMIT_S", 5.0)
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


@pytest.mark.parametrize(
    ("error", "is_groups"),
    [
        (RuntimeError("[gloo/pair.cc:537] Read error: Connection reset by peer"), True),
        (RuntimeError("NCCL error: unhandled system error"), True),
        (torch.distributed.DistNetworkError("the store is gone"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_a_groups_failure_is_told_from_the_scripts_own(error, is_groups):
    assert is_group_failure(error) is is_groups
    for link in ("__cause__", "__context__"):
        around = KeyError("from it")
        setattr(around, link, error)
        assert is_group_failure(around) is is_groups


@pytest.mark.parametrize("forms", [False, True])
def test_old_connections_strangers_and_the_store_of_a_group_that_stands_are_left_alone(forms):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as elsewhere,
        socket.create_connection(server.getsockname()) as old,
    ):
        breaker = Breaker(store_port=store.getsockname()[1])
        with (
            socket.create_connection(server.getsockname()) as member,
            socket.create_connection(store.getsockname()) as to_store,
            store.accept()[0] as of_store,
        ):
            if not forms:
                breaker.formed()
            with socket.create_connection(elsewhere.getsockname()[:2]) as stranger:
                assert not breaker.has_hung_up()
                breaker.shut()
                for one in (old, member, to_store, of_store, stranger):
                    one.settimeout(0.0)
                    if one is member or (forms and one is not old):
                        assert one.recv(1) == b"", "it was shut down"
                    else:
                        assert one.send(b"x") == 1
            assert breaker.has_hung_up() is not forms
            assert not breaker.has_hung_up(), "said once"
            of_store.close()
            assert not breaker.has_hung_up(), "a store may end"


def test_a_group_of_nccls_is_aborted_by_torch(monkeypatch):
    class Group:
        aborts = 0

        def abort(self) -> None:
            self.aborts += 1
            raise RuntimeError("it ends meanwhile")

    nccls, gloos = Group(), Group()
    world = SimpleNamespace(pg_map={gloos: ("cpu:gloo", None), nccls: ("cpu:gloo,cuda:nccl", None)})
    monkeypatch.setattr(group, "distributed_c10d", SimpleNamespace(_world=world))
    Breaker(store_port=1).shut()
    assert (nccls.aborts, gloos.aborts) == (1, 0)


def test_connections_are_listed_with_their_ends():
    before = {one.inode for one in list_connections()}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6) as mine,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        port = server.getsockname()[1]
        datagrams.connect(("127.0.0.1", port))
        _pair = socket.socketpair()
        mine.connect(("::ffff:127.0.0.1", port))
        (found,) = [one for one in list_connections() if one.inode not in before]
        assert (found.file, found.port) == (mine.fileno(), mine.getsockname()[1])
        assert (found.peer, found.peer_port) == ("127.0.0.1", port)
