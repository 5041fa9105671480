"""Connections that tell of a node's end: real processes that are killed, and cuts on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.agent.roster import events, lifelines
from launcher.agent.roster.answering import lifeline_of
from launcher.agent.roster.backend import create_handler
from launcher.agent.roster.handler import RosterHandler
from launcher.agent.roster.lifelines import ANOTHER, CLOSED, REFUSED, Lifelines, Line
from launcher.agent.roster.membership import Member
from launcher.agent.roster.store import serve_forked
from tests.launcher.agent.place import free_port, is_living
from tests.launcher.agent.roster.lines import ADDR, Answering, Relay
from tests.launcher.agent.roster.test_handler import params_of, together
from tests.waiting import wait_until

SEAT = "1.b-0"


class Watcher:
    """Lifelines, and what they have posted."""

    def __init__(self) -> None:
        self.posted: list[events.Event] = []
        self.lines = Lifelines(self.posted.append)

    @property
    def line(self) -> Line:
        return next(iter(self.lines._lines.values()))

    def stands(self) -> bool:
        return bool(self.lines._lines) and self.line.standing is not None

    def watch(self, lifeline: str, addr: str = ADDR) -> None:
        """Until the connection stands."""
        self.lines.follow((Member(seat=SEAT, addr=addr, port=1, lifeline=lifeline),))
        wait_until(self.stands)

    def tells(self, why: str) -> bool:
        return self.lines.why(SEAT) == why


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    one = Watcher()
    yield one
    one.lines.end()


@pytest.fixture
def relays() -> Iterator[Callable[[str], Relay]]:
    made: list[Relay] = []

    def make(lifeline: str) -> Relay:
        made.append(Relay(lifeline))
        return made[-1]

    yield make
    for relay in made:
        relay.end()


@pytest.fixture
def answering() -> Iterator[Callable[[], Answering]]:
    started: list[Answering] = []

    def start() -> Answering:
        started.append(Answering())
        return started[-1]

    yield start
    for one in started:
        os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


async def unreachable(lines: Lifelines, line: Line) -> None:
    """What a dial comes to where nothing answers."""
    lines._fail(line, CLOSED)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as on a network."""
    monkeypatch.setattr(lifelines, "RETRY_S", 0.02)
    monkeypatch.setattr(lifelines, "DIAL_LIMIT_S", 0.2)


def test_the_end_of_a_process_is_told_though_its_children_live_on(
    watcher: Watcher, answering: Callable[[], Answering]
) -> None:
    node = answering()
    watcher.watch(node.member.lifeline)
    node.kill()
    wait_until(lambda: watcher.tells(REFUSED))
    assert watcher.posted[-1] == events.LineClosed(SEAT)
    assert is_living(psutil.Process(node.child))


def test_a_reset_on_the_way_to_a_living_node_is_no_sign_of_its_end(
    watcher: Watcher, answering: Callable[[], Answering], relays: Callable[[str], Relay]
) -> None:
    relay = relays(answering().member.lifeline)
    watcher.watch(relay.lifeline)
    relay.cut(reset=True)
    wait_until(lambda: relay.accepted == 2 and watcher.stands())
    assert watcher.posted == []


def test_an_orderly_close_on_the_way_is_taken_back_once_the_node_answers(
    watcher: Watcher, answering: Callable[[], Answering], relays: Callable[[str], Relay]
) -> None:
    relay = relays(answering().member.lifeline)
    watcher.watch(relay.lifeline)
    relay.cut(reset=False)
    wait_until(lambda: relay.accepted == 2 and watcher.stands())
    assert watcher.posted == [events.LineClosed(SEAT), events.LineOpen(SEAT)]
    assert watcher.tells("")


@pytest.mark.usefixtures("soon")
def test_a_stopped_process_whose_connection_was_cut_is_left_to_its_silence(
    watcher: Watcher,
    answering: Callable[[], Answering],
    monkeypatch: pytest.MonkeyPatch,
    relays: Callable[[str], Relay],
) -> None:
    node = answering()
    relay = relays(node.member.lifeline)
    watcher.watch(relay.lifeline)
    node.process.send_signal(signal.SIGSTOP)
    stopped = psutil.Process(node.process.pid)
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
    relay.cut(reset=False)
    wait_until(lambda: watcher.line.failures >= 2)
    assert watcher.posted == [events.LineClosed(SEAT), events.LineOpen(SEAT)]
    monkeypatch.undo()
    node.process.send_signal(signal.SIGCONT)
    wait_until(watcher.stands)


def test_another_process_at_the_port_of_a_node_proves_its_end(
    watcher: Watcher, answering: Callable[[], Answering], relays: Callable[[str], Relay]
) -> None:
    node, other = answering(), answering()
    relay = relays(node.member.lifeline)
    watcher.watch(relay.lifeline)
    relay.to = int(other.member.lifeline.partition("/")[0])
    node.kill()
    wait_until(lambda: watcher.tells(ANOTHER))


@pytest.mark.usefixtures("soon")
def test_a_node_that_never_answered_is_left_to_its_silence(watcher: Watcher) -> None:
    member = Member(seat=SEAT, addr=ADDR, port=1, lifeline=f"{free_port()}/abcdef")
    watcher.lines.follow((member,))
    wait_until(lambda: watcher.lines._lines and watcher.line.failures >= 3)
    assert watcher.posted == []


def test_a_member_of_an_earlier_group_that_refuses_is_told_though_nothing_stood(
    watcher: Watcher,
) -> None:
    member = Member(seat=SEAT, addr=ADDR, port=1, lifeline=f"{free_port()}/abcdef")
    watcher.lines.follow((member,), presumed=True)
    wait_until(lambda: watcher.posted)
    assert watcher.posted == [events.LineClosed(SEAT)]


@pytest.mark.usefixtures("soon")
def test_a_node_that_cannot_be_reached_any_more_counts_only_after_an_orderly_close(
    watcher: Watcher,
    answering: Callable[[], Answering],
    monkeypatch: pytest.MonkeyPatch,
    relays: Callable[[str], Relay],
) -> None:
    """As of a container that was killed: its address has gone with it."""
    relay = relays(answering().member.lifeline)
    watcher.watch(relay.lifeline)
    monkeypatch.setattr(Lifelines, "_dial", unreachable)
    relay.cut(reset=True)
    wait_until(lambda: watcher.line.failures >= 3)
    assert watcher.posted == []
    monkeypatch.undo()
    wait_until(watcher.stands)
    monkeypatch.setattr(Lifelines, "_dial", unreachable)
    relay.cut(reset=False)
    wait_until(lambda: watcher.tells(CLOSED))
    assert watcher.posted == [events.LineClosed(SEAT)]


def test_asking_dials_again_though_the_connection_stands(
    watcher: Watcher, answering: Callable[[], Answering], relays: Callable[[str], Relay]
) -> None:
    relay = relays(answering().member.lifeline)
    watcher.watch(relay.lifeline)
    watcher.lines.ask(1)
    wait_until(lambda: relay.accepted == 2 and watcher.stands())
    relay.refuse()
    watcher.lines.ask(1)
    wait_until(lambda: watcher.tells(REFUSED))


def test_a_node_is_reached_by_its_name_too(
    watcher: Watcher, answering: Callable[[], Answering]
) -> None:
    watcher.watch(answering().member.lifeline, addr="localhost")


def test_a_node_that_is_watched_no_longer_is_in_no_doubt_any_more(
    watcher: Watcher, answering: Callable[[], Answering]
) -> None:
    node = answering()
    watcher.watch(node.member.lifeline)
    node.kill()
    wait_until(lambda: watcher.tells(REFUSED))
    watcher.lines.follow(())
    wait_until(lambda: watcher.posted[-1] == events.LineOpen(SEAT))


# -- with the beats of living nodes ----------------------------------------------------------------
@pytest.fixture
def pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relays: Callable[[str], Relay]
) -> Iterator[tuple[Relay, RosterHandler, RosterHandler]]:
    """Two nodes that reach each other through a relay."""
    relay = relays(lifeline_of(ADDR))
    monkeypatch.setattr("launcher.agent.roster.handler.lifeline_of", lambda _: relay.lifeline)
    store = serve_forked(0)
    config = {"fence_dir": str(tmp_path), "detection_limit_s": 600.0}
    first, second = (
        create_handler(params_of(store.port, (1, 2), node_index=index, **config))
        for index in (0, 1)
    )
    together(first, second)
    wait_until(lambda: relay.accepted == 2)
    yield relay, first, second
    for handler in (first, second):
        handler._thread.end()
    store.stop()


def test_a_fork_of_a_fork_keeps_its_own_files() -> None:
    # As a loader's process, of a worker that was forked from the agent.
    watcher = Watcher()
    watcher.watch(lifeline_of(ADDR))
    reader, writer = os.pipe()
    if (worker := os.fork()) == 0:
        try:
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
            if os.fork() == 0:
                for fd in own:
                    os.fstat(fd)
                os.write(writer, b"all are open")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(worker, 0)
    assert os.read(reader, 100) == b"all are open"
    os.close(reader)
    watcher.lines.follow(())


def pulses(handler: RosterHandler, number: int) -> None:
    """Waits for so many more beats."""
    end = handler._thread.state.count + number
    wait_until(lambda: handler._thread.state.count >= end)


@pytest.mark.parametrize("reset", [True, False])
def test_nodes_whose_connection_is_cut_stay_in_their_group(
    pair: tuple[Relay, RosterHandler, RosterHandler], reset: bool
) -> None:
    relay, *nodes = pair
    relay.cut(reset=reset)
    wait_until(lambda: relay.accepted == 4)
    pulses(nodes[0], 5)
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    assert nodes[0].head.gone == {}


def test_a_firewall_that_begins_to_refuse_is_no_loss_as_the_beats_go_on(
    pair: tuple[Relay, RosterHandler, RosterHandler],
) -> None:
    relay, *nodes = pair
    relay.refuse()
    relay.cut(reset=False)
    for node in nodes:
        wait_until(lambda n=node: n._thread.state.closed_lines)
    for node in nodes:
        wait_until(lambda n=node: not n._thread.state.closed_lines)
    pulses(nodes[0], 3)
    assert [node.num_nodes_waiting() for node in nodes] == [0, 0]
    assert nodes[0].head.gone == {}
