"""How one host finds out which others answer."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from launcher.host.facts import SETTLED_S, Listener, read_reachable


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
from launcher.host.facts import Listener, read_reachable
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
