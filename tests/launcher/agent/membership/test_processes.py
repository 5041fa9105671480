"""A coordinator in a process of its own, and clients that meet, are lost, cut off and refused."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from launcher.agent.membership import wire
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Cause, Membership
from launcher.agent.membership.process import CoordinatorProcess, ask, serve_forked
from launcher.agent.membership.settings import Rules
from launcher.contract.clock import SystemClock

RUN, TOKEN = "digits-1", "s3cret"


def rules(least: int = 2, most: int = 2, **given: Any) -> Rules:
    given = {"last_call_s": 0.2, "detection_limit_s": 2.0, "growth_pause_s": 0.0} | given
    given = {"admit_limit_s": 0.25} | given
    return Rules(min_nodes=least, max_nodes=most, **given)


class Bench:
    """One coordinator, and the clients of this process."""

    def __init__(self, **given: Any) -> None:
        self.rules = rules(**given)
        self.served: CoordinatorProcess = serve_forked(0, self.rules, RUN, TOKEN)
        self.ending = ExitStack()
        self.ending.callback(self.served.stop)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.ending.callback(self.listener.close)

    def client(self, index: int, **given: Any) -> Client:
        options = {"run_id": RUN, "token": TOKEN, "port": self.served.port} | given
        own = Rules(**{**vars(self.rules), "node_index": index})
        client = Client("127.0.0.1", rules=own, clock=SystemClock(), **options)
        client.begin(1.0 if given else 5.0)
        self.ending.callback(client.end)
        return client

    def join(self, client: Client, *, answers: int | None = None, limit_s: float = 60.0) -> None:
        port = self.listener.getsockname()[1] if answers is None else answers
        workers = 1 + int(client.name[0])
        client.join(limit_s, addr="127.0.0.1", port=4711, answers=port, workers=workers)

    def meet(self, *indexes: int) -> list[Client]:
        clients = [self.client(index) for index in indexes]
        for client in clients:
            self.join(client)
        for client in clients:
            answer_of(client)
        return clients


@pytest.fixture
def make() -> Iterator[Any]:
    with ExitStack() as stack:

        def bench(**given: Any) -> Bench:
            one = Bench(**given)
            stack.callback(one.ending.close)
            return one

        yield bench


def hear_round(client: Client, after: int, limit_s: float = 5.0) -> None:
    """That a round was opened after the membership of this generation."""

    def is_open() -> bool:
        status = client.status
        return status.generation > after or (status.generation == after and not status.sealed)

    assert client.settle(is_open, limit_s)


def answer_of(client: Client) -> Membership:
    client.wait_for(lambda: client.answer)
    assert isinstance(client.answer, Membership), client.answer
    return client.answer


def test_a_node_whose_process_has_ended_is_lost_at_once(make):
    bench = make(least=1, most=3)
    (stays,) = bench.meet(0)
    ends = bench.client(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bench.join(ends, answers=listener.getsockname()[1])
        hear_round(stays, 1)
        bench.join(stays)
        assert (answer_of(stays).size, answer_of(ends).size) == (2, 2)
    began = time.monotonic()
    ends.end()
    hear_round(stays, 2)
    assert time.monotonic() - began < 1.5
    assert stays.status.cause is Cause.LOST
    assert list(stays.losses) == ["node 1 is lost: its connection closed and its port refuses"]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_connection_that_is_cut_is_dialled_again_and_nothing_has_happened(make, refuses):
    """Also where a firewall refuses what the coordinator dials."""
    bench = make()
    clients = bench.meet(0, 1)
    if refuses:
        bench.listener.close()
    for client in clients:
        connection = client._socket
        assert connection
        connection.shutdown(socket.SHUT_RDWR)
    time.sleep(1.5)
    for client in clients:
        client.check()
        assert (client.status.sealed, client.status.generation) == (True, 1)
        assert client._socket


def test_what_was_said_while_the_connection_was_cut_is_said_again(make):
    bench = make()
    first, second = bench.meet(0, 1)
    connection = first._socket
    assert connection
    connection.shutdown(socket.SHUT_RDWR)
    first.say("finish")
    second.say("finish")
    for one in (first, second):
        assert one.settle(lambda one=one: one.status.closed == "finished", 5.0)


def take_part(bench: Bench) -> None:
    """A node that joins whenever a round is open, until it is killed."""
    client = bench.client(1)
    while True:
        bench.join(client, answers=1)
        hear_round(client, answer_of(client).generation, 60.0)


def test_a_node_that_stands_still_is_lost_after_the_limit_and_comes_in_again(make, tmp_path):
    bench = make(least=1, most=2, fence_dir=str(tmp_path))
    node = multiprocessing.get_context("fork").Process(target=take_part, args=(bench,))
    node.start()
    stays = bench.client(0)

    def meet_as(size: int) -> int:
        """Joins until the group has this size; its generation."""
        bench.join(stays)
        group = answer_of(stays)
        if group.size == size:
            return group.generation
        hear_round(stays, group.generation)
        return meet_as(size)

    try:
        both = meet_as(2)
        os.kill(node.pid or 0, signal.SIGSTOP)
        began = time.monotonic()
        hear_round(stays, both)
        assert 1.4 < time.monotonic() - began < 3.5
        assert "node 1 is lost: silent for 2" in stays.losses[-1]
        assert meet_as(1) == both + 1
        os.kill(node.pid or 0, signal.SIGCONT)
        hear_round(stays, both + 1)
    finally:
        node.kill()


def test_a_coordinator_that_is_gone_is_known_at_once_and_a_frozen_one_after_the_limit(make):
    bench = make()
    (client, _) = bench.meet(0, 1)
    bench.served.stop()
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="is gone"):
        check_for(client, 5.0)
    assert time.monotonic() - began < 1.5
    frozen = make()
    (client, _) = frozen.meet(0, 1)
    os.kill(frozen.served.pid, signal.SIGSTOP)
    with pytest.raises(RendezvousConnectionError, match="silent for 2"):
        check_for(client, 10.0)


def check_for(client: Client, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        client.check()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("no-such-host.invalid", "Name or service not known|name resolution"),
        ("127.0.0.1", "refused"),
    ],
)
def test_why_no_coordinator_answers_is_told(host, why):
    client = Client(host, 1, RUN, rules(), SystemClock())
    with pytest.raises(RendezvousConnectionError, match=f"did not answer within 1 s: .*({why})"):
        client.begin(1.0)
    client.end()


# -- strangers -------------------------------------------------------------------------------------
def speak(port: int, *lines: bytes) -> bytes:
    """What the coordinator says to somebody who says these lines, after its greeting."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        heard = connection.makefile("rb")
        heard.readline()
        for line in lines:
            connection.sendall(line)
        try:
            return heard.read()
        except OSError:
            return b""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"\x00\xff garbage\n", "no message"),
        (b"[1, 2]\n", "no message"),
        (b'{"half": ', "half a message"),
        (b"x" * 200_000 + b"\n", "limit"),
        (
            wire.encode({"name": "1.x", "run": RUN, "nonce": "n", "proof": "wrong"}),
            "it does not know the run's token",
        ),
    ],
    ids=["garbage", "a list", "half", "200 kB", "another token"],
)
def test_who_is_no_node_is_told_once_and_disturbs_nobody(make, capfd, line, told):
    bench = make()
    for _ in range(3):
        if told == "half a message":
            connection = socket.create_connection(("127.0.0.1", bench.served.port))
            connection.sendall(line)
            connection.close()
        else:
            assert speak(bench.served.port, line) == b""
    bench.meet(0, 1)
    said = "".join(capfd.readouterr()).splitlines()
    assert len(said) == 1, said
    assert "a connection from" in said[0]
    assert told in said[0]


def test_a_node_of_another_run_is_refused_and_so_is_one_without_the_token(make):
    bench = make()
    for wrong in ({"run_id": "digits-2"}, {"token": "other"}):
        with pytest.raises(RendezvousConnectionError, match="another run, or another token"):
            bench.client(0, **wrong)
    bench.meet(0, 1)


def test_who_serves_a_run_is_found_by_whoever_knows_it(make):
    bench = make()
    port = bench.served.port
    assert ask("127.0.0.1", port, RUN, 2.0, TOKEN) == bench.served.origin
    for wrong in (("digits-2", 2.0, TOKEN), (RUN, 2.0, "other")):
        with pytest.raises(wire.WireError, match="another run, or another token"):
            ask("127.0.0.1", port, *wrong)
    bench.served.stop()
    with pytest.raises(ConnectionRefusedError):
        ask("127.0.0.1", port, RUN, 2.0, TOKEN)
