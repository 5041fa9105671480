"""Nodes that are lost, cut off and frozen, a coordinator that is, and whoever else connects."""

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from launcher.agent import signals
from launcher.agent.membership import client, wire
from launcher.agent.membership.group import RoundCause
from launcher.agent.membership.process import UnservedError, serve_forked
from tests.launcher.agent.membership.conftest import RUN, Bench
from tests.waiting import wait_until


@pytest.fixture
def at_port(monkeypatch) -> Iterator[Callable[[bool], None]]:
    """Has all nodes say that they answer at a port that refuses, or where nothing answers."""
    with contextlib.ExitStack() as stack:

        def choose(refuses: bool) -> None:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            port = listener.getsockname()[1]
            monkeypatch.setattr(client, "answering_port", lambda _: port)
            if refuses:
                listener.close()
            for _ in range(0 if refuses else 3):
                waits = stack.enter_context(socket.socket())
                waits.setblocking(False)
                waits.connect_ex(("127.0.0.1", port))

        yield choose


@pytest.mark.parametrize(
    ("refuses", "why"), [(True, "its port refuses"), (False, "nothing answers")]
)
def test_a_node_whose_process_has_ended_is_lost_at_once(make, at_port, refuses, why):
    """Also if its address went with it, as a container's does."""
    at_port(refuses)
    stays, ends = make(1, 2).meet(0, 1)
    began = time.monotonic()
    ends.end()
    wait_until(stays.must_meet)
    assert time.monotonic() - began < 1.5
    assert stays.status.cause is RoundCause.LOST
    assert stays.take_losses() == (f"node 1 is lost: its connection closed and {why}",)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_connection_that_is_cut_is_dialled_again_and_nothing_has_happened(make, at_port, refuses):
    """Also where a firewall refuses what the coordinator dials."""
    if refuses:
        at_port(refuses)
    nodes = make(2, 2).meet(0, 1)
    for node in nodes:
        node._socket.shutdown(socket.SHUT_RDWR)
    time.sleep(1.5)
    for node in nodes:
        assert node.must_meet() is False
        assert (node.status.sealed, node.status.generation) == (True, 1)
        assert node._socket


def test_what_was_said_while_the_connection_was_cut_is_said_again(make):
    nodes = make(2, 2).meet(0, 1)
    nodes[0]._socket.shutdown(socket.SHUT_RDWR)
    for node in nodes:
        node.say("finish")
    for node in nodes:
        node.wait_until_closed()
        assert (node.status.closed, node.must_meet()) == ("finished", False)


@pytest.mark.parametrize("signum", [*signals.ENDING, *signals.FOR_SCRIPTS])
def test_a_signal_to_all_processes_of_a_terminal_ends_no_coordinator(make, signum):
    bench = make()
    os.kill(bench.served.pid, signum)
    assert bench.meet(0)


def take_part(bench: Bench) -> None:
    """A node that joins whenever a round is open, until it is killed."""
    node = bench.node(1)
    while True:
        node.meet()
        wait_until(node.must_meet)


def test_a_node_that_stands_still_is_lost_after_the_limit_and_comes_in_again(make, tmp_path):
    bench = make(1, 2, fence_dir=str(tmp_path), last_call_s=0.2)
    process = multiprocessing.get_context("fork").Process(target=take_part, args=(bench,))
    process.start()
    stays = bench.node(0)

    def meet_as(size: int) -> None:
        while stays.meet().size != size:
            wait_until(stays.must_meet)

    try:
        meet_as(2)
        both = stays.membership.generation
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        wait_until(stays.must_meet)
        assert 1.4 < time.monotonic() - began < 3.5
        assert "node 1 is lost: silent for 2" in stays.take_losses()[-1]
        meet_as(1)
        assert stays.membership.generation == both + 1
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: stays.status.newcomers)
        stays.say("admit")
        wait_until(stays.must_meet)
        meet_as(2)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("sent", "most_s", "why"),
    [(signal.SIGKILL, 1.5, "is gone"), (signal.SIGSTOP, 9, "silent for 2")],
)
def test_a_coordinator_that_is_gone_is_known_at_once_and_a_frozen_one_after_the_limit(
    make, sent, most_s, why
):
    bench = make()
    (node,) = bench.meet(0)
    os.kill(bench.served.pid, sent)
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match=why):
        wait_until(node.must_meet)
    assert time.monotonic() - began < most_s
    assert node.shutdown() is False


@pytest.mark.parametrize(("least", "goes_on"), [(2, True), (1, False)])
def test_without_a_coordinator_workers_go_on_only_where_no_other_group_could_form(
    make, least, goes_on
):
    bench = make(least, 2)
    first, second = bench.meet(0, 1)
    first.say("finish")
    wait_until(lambda: second.status.finished)
    bench.served.stop()
    wait_until(lambda: second.is_gone)
    with contextlib.nullcontext() if goes_on else pytest.raises(RendezvousConnectionError):
        assert second.must_meet() is False


def test_a_coordinator_that_stood_still_has_lost_nobody_and_who_did_not_look_has_not_lost_it(make):
    bench = make(2, 2)
    nodes = bench.meet(0, 1)
    os.kill(bench.served.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(bench.served.pid, signal.SIGCONT)
    assert [node.is_gone for node in nodes] == [False, False]
    for node in nodes:
        node.say("heals")
    wait_until(lambda: all(node.status.heals for node in nodes))
    assert [(node.must_meet(), node.take_losses()) for node in nodes] == [(False, ())] * 2


def test_a_coordinator_keeps_nothing_of_its_agent_and_takes_as_many_connections_as_it_may(make):
    reader, writer = os.pipe()
    bench = make()
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert resource.prlimit(bench.served.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    with pytest.raises(UnservedError, match=f"can listen on port {bench.served.port}: .*in use"):
        serve_forked(bench.served.port, bench.rules, RUN)


@pytest.mark.parametrize(
    ("addr", "is_local"), [("127.0.0.1", True), ("localhost", True), ("203.0.113.9", False)]
)
def test_a_node_answers_where_the_others_reach_it_and_no_fork_answers_for_it(addr, is_local):
    def heard(pid: int) -> list[bool]:
        found = psutil.Process(pid).net_connections("tcp")
        return [one.laddr.ip == "127.0.0.1" for one in found if one.laddr.port == port]

    port = client.answering_port(addr)
    assert heard(os.getpid()) == [is_local]
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    assert process.pid
    try:
        wait_until(lambda: not heard(process.pid))
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ({"host": "no-such-host.invalid"}, "Name or service not known|name resolution"),
        ({"port": 1}, "refused"),
        ({"run": "digits-2"}, "another run, or another token"),
        ({"token": "other"}, "another run, or another token"),
    ],
)
def test_why_no_coordinator_answers_is_told(make, at, why):
    bench = make()
    with pytest.raises(RendezvousConnectionError, match=f"did not answer within 1.1 s: .*({why})"):
        bench.node(connect_timeout_s=0.1, **at)
    bench.meet(0)


# -- strangers -------------------------------------------------------------------------------------
def speak(port: int, line: bytes) -> bytes:
    """What the coordinator says to somebody who says this and then nothing, after its greeting."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        heard = connection.makefile("rb")
        heard.readline()
        with contextlib.suppress(OSError):
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            return heard.read()
    return b""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"\x00\xff garbage\n", "no message"),
        (b"[1, 2]\n", "no message"),
        (b'{"half": ', "half a message"),
        (wire.encode({"name": "1.x"}), "'run'"),
        (wire.encode({"name": "", "run": "other"}), "it is of run 'other', and this is 'digits-1'"),
        (b"", None),
        (b"x" * (100 << 20) + b"\n", "limit"),
        (
            wire.encode({"name": "1.x", "run": RUN, "nonce": "n", "proof": "wrong"}),
            "it does not know the run's token",
        ),
    ],
    ids=["garbage", "a list", "half", "no run", "another run", "nothing", "100 MB", "no token"],
)
def test_who_is_no_node_is_told_once_and_disturbs_nobody(make, capfd, line, told):
    bench = make(2, 2)
    for _ in range(3):
        assert speak(bench.served.port, line) == b""
    bench.meet(0, 1)
    said = "".join(capfd.readouterr()).splitlines()
    assert len(said) == (told is not None)
    for line in said:
        assert "a connection from 127.0.0.1" in line
        assert told in line
