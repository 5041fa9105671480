"""What one host finds out: which others answer, and what it has for RDMA."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launcher.job.spec import JobSpec
from launcher.targets.hosts.program.facts import read_memlock_bytes, read_rdma_devices
from launcher.targets.hosts.program.messages import HostReport
from launcher.targets.hosts.program.reach import SETTLED_S, Listener, read_reachable
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.survey import why_not


def test_a_host_greets_its_callers_while_it_calls_others():
    listener, silent = Listener("mine"), Listener("silent")
    call = ["127.0.0.1", listener.port, "mine"]
    with ThreadPoolExecutor() as pool:
        # Nobody answers this one, so that it lasts until its limit.
        calling = [["127.0.0.1", silent.port, "silent"]]
        busy = pool.submit(read_reachable, calling, 2.0, [listener])
        assert read_reachable([call], 5.0) == [0]
        assert busy.result() == []
    assert read_reachable([call], 0.2) == []


def test_a_listener_with_another_token_is_somebody_else():
    listener = Listener("mine")
    with ThreadPoolExecutor() as pool:
        greeting = pool.submit(listener.answer)
        assert read_reachable([["127.0.0.1", listener.port, "yours"]], 5.0) == []
        greeting.result()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listen(opened: ExitStack, address: str, port: int = 0) -> tuple[socket.socket, int]:
    server = opened.enter_context(socket.create_server((address, port), backlog=512))
    return server, server.getsockname()[1]


def greet(server: socket.socket, token: str) -> None:
    with server.accept()[0] as peer:
        peer.sendall(token.encode())


@pytest.mark.timeout(60)
def test_an_address_that_never_answers_of_a_host_that_did_is_not_waited_for(
    opened: ExitStack,
) -> None:
    server, port = listen(opened, "127.0.0.1")
    listen(opened, "127.0.0.2", port)  # takes calls and says nothing, as nobody at 169.254.1.1
    calls = [["127.0.0.2", port, "one"], ["127.0.0.1", port, "one"]]
    with ThreadPoolExecutor() as pool:
        greeting = pool.submit(greet, server, "one")
        assert read_reachable(calls, 3600.0) == [1]
        greeting.result()


def test_a_host_that_has_answered_at_one_port_alone_is_waited_for(opened: ExitStack) -> None:
    (first, port), (second, late_port) = listen(opened, "127.0.0.1"), listen(opened, "127.0.0.1")
    calls = [["127.0.0.1", port, "one"], ["127.0.0.1", late_port, "one"]]
    with ThreadPoolExecutor() as pool:
        late = threading.Timer(SETTLED_S + 1.0, greet, (second, "one"))
        late.start()
        greeting = pool.submit(greet, first, "one")
        assert read_reachable(calls, 30.0) == [0, 1]
        greeting.result()
        late.join()


MANY = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from launcher.targets.hosts.program.reach import Listener, read_reachable
silent, listener = socket.create_server(("127.0.0.1", 0), backlog=512), Listener("here")
calls = [["127.0.0.1", silent.getsockname()[1], "none"]] * 300
calls += [["127.0.0.1", listener.port, "here"]] * 1200
print(read_reachable(calls, 6.0, [listener]) == list(range(300, 1500)))
"""


def test_many_hosts_are_called_with_few_descriptors_and_silent_ones_hold_up_none() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_an_address_of_a_kind_that_this_host_has_not_is_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = socket.socket

    def without_ipv6(family: int = -1, *others: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *others)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    assert read_reachable([["fd00::1", 1, "there"]], 1.0) == []


# -- RDMA -----------------------------------------------------------------------------------------


def test_the_devices_of_rdma_are_those_of_the_verbs(tmp_path: Path) -> None:
    for name in ("uverbs1", "uverbs0", "rdma_cm", "issm0"):
        (tmp_path / name).touch()
    devices = read_rdma_devices(str(tmp_path))
    assert list(devices) == [f"{tmp_path}/uverbs0", f"{tmp_path}/uverbs1"]
    assert set(devices.values()) == {True}
    assert read_rdma_devices(str(tmp_path / "none")) == {}


def test_no_limit_of_locked_memory_holds_for_whoever_may_lock_all(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = tmp_path / "status"
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, hard))
    try:
        status.write_text("Name:\tpython3\nCapEff:\t00000000a80425fb\n")
        assert read_memlock_bytes(str(status)) == 4096
        status.write_text("Name:\tpython3\nCapEff:\t000001ffffffffff\n")
        assert read_memlock_bytes(str(status)) is None
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


FIT = HostReport(
    python="/usr/bin/python3",
    torch_version="2.13.0",
    docker="27.1",
    rdma_devices={"/dev/infiniband/uverbs0": True},
)
CLOSED = {"/dev/infiniband/uverbs0": False}


@pytest.mark.parametrize(
    ("runtime", "found", "why", "fix"),
    [
        ("docker", {}, "", ""),
        # The engine lifts both.
        ("docker", {"rdma_devices": CLOSED, "memlock_bytes": 65536}, "", ""),
        ("docker", {"rdma_devices": {}}, "has no RDMA device", "modprobe ib_uverbs"),
        ("python", {}, "", ""),
        ("python", {"rdma_devices": {}}, "has no RDMA device", "--set resources.rdma=false"),
        ("python", {"rdma_devices": CLOSED}, "may not open /dev/infiniband/uverbs0", "chmod 666"),
        ("python", {"memlock_bytes": 65536}, "may lock 64 KiB", "'* - memlock unlimited'"),
    ],
)
def test_a_host_without_what_rdma_needs_is_refused_with_the_fix(
    make_job: Callable[..., JobSpec], runtime: str, found: dict[str, Any], why: str, fix: str
) -> None:
    job = make_job(hosts={"runtime": runtime}, resources={"rdma": True})
    told = why_not(Host(name="gpu1"), FIT.having(**found), job)
    assert bool(told) == bool(why)
    assert why in told
    assert fix in told
    without = make_job(hosts={"runtime": runtime})
    assert why_not(Host(name="gpu1"), FIT.having(**found), without) == ""
