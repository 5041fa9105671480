"""The store's process: small, dies with its parent, and is found before another is founded."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from launcher.agent.roster.events import Enlist, Fetch, Swap, Swapped, Values, Write
from launcher.agent.roster.leaving import EXIT_BARRIER, AgentStore
from launcher.agent.roster.membership import Head, close, format_head
from launcher.agent.roster.store import Endpoint, StoreClient, find_store, serve_forked
from tests.waiting import wait_until


def here(port: int) -> Endpoint:
    return Endpoint(host="127.0.0.1", port=port)


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def test_the_stores_process_has_a_few_megabytes_of_its_own() -> None:
    store = serve_forked(0)
    client = StoreClient(here(store.port), "run", 5)
    for number in range(1000):
        client.carry_out(Write(f"beat/{number}", "1 r1"))
    used = private_bytes(store.pid)
    print(f"private memory of the store: {used / 1e6:.1f} MB")
    assert used < 8e6
    store.stop()
    store.stop()


def test_the_store_dies_with_the_process_that_started_it() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            os.write(writer, str(serve_forked(0).pid).encode())
            signal.pause()
        finally:
            # Else a copy of pytest would run all other tests.
            os._exit(1)
    os.close(writer)
    pid = int(os.read(reader, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: not running(pid))
    os.close(reader)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_store_keeps_no_open_file_of_its_parent() -> None:
    reader, writer = os.pipe()
    store = serve_forked(0)
    os.close(writer)
    assert os.read(reader, 1) == b"", "the store holds the pipe open"
    os.close(reader)
    store.stop()


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match=str(port)):
            serve_forked(port)


def test_only_the_first_of_two_swaps_wins() -> None:
    store = serve_forked(0)
    client = StoreClient(here(store.port), "run", 5)
    assert client.carry_out(Swap("", "a")) == Swapped("a")
    assert client.carry_out(Swap("", "b")) == Swapped("a")
    assert client.carry_out(Swap("a", "c")) == Swapped("c")
    client.carry_out(Enlist("0.x-0"))
    client.carry_out(Enlist("1.y-0"))
    answer = client.carry_out(Fetch(("head", "seats")))
    assert answer == Values({"head": "c", "seats": "0.x-0 1.y-0 "})
    store.stop()


def test_the_store_that_serves_the_run_is_found_among_dead_frozen_and_closed_ones() -> None:
    stores = [serve_forked(0) for _ in range(4)]
    head = Head(origin="o", leader="0.x-0")
    StoreClient(here(stores[2].port), "run", 5).carry_out(
        Swap("", format_head(close(head, "finished")))
    )
    StoreClient(here(stores[3].port), "run", 5).carry_out(Swap("", format_head(head)))
    stores[0].stop()
    os.kill(stores[1].pid, signal.SIGSTOP)
    candidates = [here(store.port) for store in stores]
    began = time.monotonic()
    assert find_store(candidates, "run", 1.0) == candidates[3]
    assert find_store(candidates, "another run", 1.0) is None
    assert time.monotonic() - began < 10
    for store in stores:
        store.stop()


def test_a_store_whose_process_hangs_at_its_start_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from launcher.agent.roster import store as module

    serve, starts = module._serve, []

    def hang_once(*arguments: Any) -> None:
        if len(starts) == 1:
            signal.pause()
        serve(*arguments)

    def freeze() -> None:
        starts.append(1)

    monkeypatch.setattr(module, "READY_LIMIT_S", 3.0)
    monkeypatch.setattr(module, "_serve", hang_once)
    monkeypatch.setattr(module.gc, "freeze", freeze)
    served = serve_forked(0)
    try:
        assert len(starts) == 2
        assert served.port > 0
    finally:
        served.stop()


def test_both_ways_in_which_torch_waits_at_its_exit_barrier_are_the_agents_own() -> None:
    waited: list[str] = []
    store = AgentStore("run", HashStore(), lambda: None, lambda: waited.append("waited"))
    last_member = f"{EXIT_BARRIER}/last_member"
    store.wait([last_member])
    store.get(last_member)  # torch 2.4
    assert waited == ["waited", "waited"]
    store.set("other", "value")
    assert store.get("other") == b"value"
