"""The thread that heals: its group and its workers are played. Real losses: ``agent/claims``."""

import json
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousConnectionError

from launcher.agent.engine.heal import Healer
from launcher.agent.membership.group import GroupStatus, Member, Membership, RoundCause
from launcher.contract.clock import SystemClock
from tests.waiting import wait_until


class Clock(SystemClock):
    """May be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


def membership(generation: int, cause: RoundCause = RoundCause.LOST) -> Membership:
    """Of the second of two nodes, each with two workers."""
    first = Member("0.a", "10.0.0.1", 1234)
    place = {"rank": 1, "size": 2, "before": 2, "workers": 4}
    return Membership(generation=generation, cause=cause, first=first, **place)


class Roster:
    """What the coordinator has told this node; ``answers`` are those to its next questions."""

    where = "a:1"

    def __init__(self, **values: Any) -> None:
        self.membership = membership(1)
        self.status = GroupStatus(sealed=True, generation=1)
        self.is_member, self.is_gone, self.is_left_behind = True, False, False
        self.answers: list[Membership | Exception | None] = []
        self.said: list[str] = []
        self.looks = self.wakes = 0
        self.has_to_meet: Callable[[], bool] = lambda: False
        """What ends the present look before its time."""
        vars(self).update(values)

    def say(self, word: str) -> None:
        self.said.append(word)

    def wake(self) -> None:
        self.wakes += 1

    def settle(self, condition: Callable[[], bool], limit_s: float) -> None:
        self.looks, self.has_to_meet = self.looks + 1, condition
        time.sleep(0.002)

    def meet(self, is_over: Callable[[], bool]) -> Membership | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self.is_member = True
        return answer

    def end(self) -> None:
        self.said.append("end")


class Worker:
    """A worker's end of its connection."""

    def __init__(self, healer: Healer, local_rank: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60.0)
        self.socket.connect(str(healer.path))
        self._lines = self.socket.makefile("rb")
        self.say(worker=local_rank)

    def say(self, **message: object) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)

    def hear(self) -> Any:
        line = self._lines.readline()
        return json.loads(line) if line else None


class Played:
    """A node of two workers in a group, as its healer sees it."""

    def __init__(self, path: Any) -> None:
        self.told: list[Any] = []
        self.clock, self.roster = Clock(), Roster()
        self.node = SimpleNamespace(
            attempts=SimpleNamespace(workers={0: 0, 1: 0}, break_reasons={}),
            roster=self.roster,
            on_met_again=self.told.append,
            on_healed=lambda *values: self.told.append(values),
            ledger=SimpleNamespace(write=lambda *event, **values: self.told.append(values)),
        )
        self.healer = Healer(self.node, path, self.clock)
        self.healer.start()
        self.workers = [Worker(self.healer, 0)]
        wait_until(lambda: self.healer._workers)
        assert not self.roster.said, "one of two cannot heal"
        self.workers.append(Worker(self.healer, 1))
        wait_until(lambda: self.healer.can_heal)

    def say(self, **message: object) -> None:
        for worker in self.workers:
            worker.say(**message)

    def work(self, generation: int = 1) -> None:
        """The workers are in a world and train."""
        self.say(ready=True)
        wait_until(lambda: self.healer.waits)
        self.say(formed=generation)
        wait_until(lambda: not any(one.waits for one in self.healer._workers.values()))

    def lose(self, cause: RoundCause = RoundCause.LOST, *, sealed: bool = False) -> None:
        self.roster.status = GroupStatus(cause=cause, sealed=sealed, generation=1)
        self.roster.is_member = False

    def look(self) -> None:
        """Until two more whole looks are over."""
        until = self.roster.looks + 3
        wait_until(lambda: self.roster.looks >= until)

    def hear(self) -> list[Any]:
        return [worker.hear() for worker in self.workers]


@pytest.fixture
def played(tmp_path):
    made = Played(tmp_path / "agent")
    yield made
    made.healer.refused = "the test is over"
    for worker in made.workers:
        worker.end()


LOST = {"lost": "the group has to form again: lost", "generation": 1}


def world(local_rank: int, generation: int) -> dict[str, Any]:
    return {
        "world": {
            "RANK": f"{2 + local_rank}", "ROLE_RANK": f"{2 + local_rank}",
            "WORLD_SIZE": "4", "ROLE_WORLD_SIZE": "4",
            "LOCAL_RANK": f"{local_rank}", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234",
            "LAUNCHER_GENERATION": f"{generation}",
        },
        "generation": generation,
        "joined": False,
    }  # fmt: skip


@pytest.mark.parametrize("sealed_as", [RoundCause.LOST, RoundCause.JOINED])
def test_workers_leave_a_lost_world_and_are_told_their_places_in_the_next(played, sealed_as):
    played.work()
    # A group that others have formed meanwhile lets nobody in, whatever it was formed for.
    played.lose(sealed_as, sealed=sealed_as is RoundCause.JOINED)
    assert played.hear() == [{**LOST, "lost": f"the group has to form again: {sealed_as}"}] * 2
    played.clock.ahead_s += 60.0  # long, and within the limit
    played.workers[0].say(ready=True)
    played.look()
    assert not played.told, "one has not left its world"
    met = membership(2)
    played.roster.answers += [RendezvousConnectionError("gone"), None, met]
    played.workers[1].say(ready=True)
    assert played.hear() == [world(0, 2), world(1, 2)], "lost is said once"
    played.roster.status = GroupStatus(sealed=True, generation=2, finished=1)
    assert not played.healer.comes_too_late, "they have been in a world"
    for worker, paused_s in zip(played.workers, (0.5, 0.6), strict=True):
        worker.say(formed=2)
        worker.say(healed=2, step=7, paused_s=paused_s)
    wait_until(lambda: len(played.told) > 1)
    played.look()
    assert played.told == [met, (2, 7, 0.5)], "the node's first worker says it for all"
    assert played.roster.said == ["heals"]
    assert played.roster.wakes >= 4
    # The next loss is told too.
    played.lose()
    assert played.hear() == [{**LOST, "generation": 2}] * 2


def test_newcomers_are_let_in_while_the_workers_train(played):
    played.work()
    played.roster.answers.append(membership(2, RoundCause.JOINED))
    played.lose(RoundCause.JOINED)
    assert played.hear() == [{**world(rank, 2), "joined": True} for rank in range(2)]


def test_one_that_the_others_went_on_without_is_told_to_leave_though_others_are_let_in(played):
    played.work()
    played.lose(RoundCause.JOINED)
    played.roster.is_left_behind = True
    assert played.hear() == [LOST | {"lost": "the group has to form again: joined"}] * 2
    played.roster.answers.append(membership(3, RoundCause.JOINED))
    played.say(ready=True)
    assert played.hear() == [world(0, 3), world(1, 3)]


def test_a_loss_is_told_again_to_who_was_entering_the_next_world_meanwhile(played):
    played.work()
    played.lose()
    assert played.hear() == [LOST] * 2
    played.say(formed=2)
    again = {LOST["lost"], 2}
    while {*(told := played.workers[0].hear()).values()} != again:
        assert told == LOST, "the other may not have been there yet"


def test_a_newcomer_whose_world_is_over_before_it_came_in_comes_too_late(played):
    played.healer.joins = True
    played.roster.status = GroupStatus(finished=1)
    assert not played.healer.comes_too_late, "it has been told no world"
    played.roster.answers.append(membership(2))
    played.roster.is_member = False
    played.say(ready=True)
    assert played.hear() == [world(0, 2), world(1, 2)]
    assert not played.healer.comes_too_late
    played.roster.status = GroupStatus(finished=2)
    assert played.healer.comes_too_late
    played.say(formed=2)
    wait_until(lambda: not played.healer.comes_too_late)


@pytest.mark.parametrize(("left_behind", "limit_s"), [(False, 120), (True, 5)])
def test_a_worker_that_does_not_leave_is_started_anew_at_the_limit(
    played, left_behind, limit_s, capsys
):
    played.say(ready=True)
    wait_until(lambda: played.healer.waits)
    played.workers[0].say(formed=1)  # the other still forms
    wait_until(lambda: not played.healer.waits)
    played.roster.is_left_behind = left_behind
    played.lose()
    assert played.hear() == [LOST] * 2
    played.clock.ahead_s += limit_s - 3
    played.look()
    assert played.healer.can_heal
    played.clock.ahead_s += 4
    wait_until(lambda: not played.healer.can_heal)
    assert f"a worker did not leave its world within {limit_s} s" in capsys.readouterr().err


def test_a_group_that_broke_meets_again_where_the_coordinator_knows_of_no_loss(played, capsys):
    played.work()
    played.workers[1].say(broken="reset by peer")
    played.say(ready=True)
    wait_until(lambda: played.healer.waits and played.healer._broken_at)
    played.look()  # asked, the roster would have no answer
    assert played.healer.can_heal
    played.roster.answers += [membership(2), membership(3)]
    played.clock.ahead_s += 1.0
    assert played.hear() == [world(0, 2), world(1, 2)]
    # What broke before the next world was there is not its own.
    played.workers[1].say(broken="reset by peer", generation=1)
    played.clock.ahead_s += 2.0
    played.look()
    played.workers[1].say(broken="reset by peer", generation=2)
    wait_until(lambda: played.healer._broken_at)
    played.say(formed=2)
    wait_until(lambda: played.healer._broken_at is None)
    played.clock.ahead_s += 2.0
    played.look()
    assert len(played.roster.answers) == 1
    assert capsys.readouterr().err.count("local rank 1 broke: reset by peer") == 3


def test_what_broke_a_world_is_known_until_the_next_one(played):
    played.work()
    why = "RuntimeError: Timed out waiting 3000ms"
    played.workers[1].say(broken=why)
    wait_until(lambda: played.node.attempts.break_reasons == {1: why})
    played.workers[1].say(formed=2)
    wait_until(lambda: not played.node.attempts.break_reasons)


@pytest.mark.parametrize("follows", [True, False])
def test_the_coordinator_that_follows_one_that_is_gone_is_asked(played, follows, capsys):
    new = Roster(answers=[membership(2)], is_member=False)
    played.healer.rounds = SimpleNamespace(
        on_lost=lambda cause: follows and cause == "store-lost",
        plan_next=lambda: None,
        open_roster=lambda: new,
    )
    played.work()
    played.roster.is_gone = True
    assert played.hear() == [LOST | {"lost": "the group has to form again: first"}] * 2
    played.say(ready=True)
    if not follows:
        wait_until(lambda: played.healer.refused == "a:1 is gone")
        return
    assert played.hear() == [world(0, 2), world(1, 2)]
    assert played.roster.said == ["heals", "end"]
    wait_until(lambda: new.said == ["heals"])
    assert played.told == [{"detail": "a:1 is gone"}, membership(2)]
    assert "a:1 is gone; the next one answers" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RendezvousClosedError("closed"), OSError("closed")])
def test_a_group_that_does_not_form_again_is_left_to_torchs_agent(played, error):
    played.roster.answers.append(error)
    played.lose()
    played.say(ready=True)
    wait_until(lambda: played.healer.refused == "closed")
    with played.healer.suspended():
        assert played.hear() == [None, None], "the attempt's workers are let go"
        assert played.roster.wakes
        assert not played.healer.refused
        assert not played.healer._workers
        played.workers = [Worker(played.healer, local_rank) for local_rank in range(2)]
        played.say(ready=True)
        wait_until(lambda: played.healer.waits)
        played.look()  # nobody is asked
        assert not played.roster.has_to_meet(), "each look takes its time"
        played.roster.answers.append(membership(2))
    assert played.hear() == [world(0, 2), world(1, 2)]


def test_a_worker_that_ended_or_says_nonsense_does_not_heal_and_its_successor_does(played):
    first, healing = played.workers[0], played.healer._workers
    known = healing[0].connection.fileno()
    again = Worker(played.healer, 0)
    wait_until(lambda: healing[0].connection.fileno() != known)
    first.socket.sendall(b"nonsense\n")
    assert first.hear() is None
    played.look()
    assert played.healer.can_heal
    again.say(ready=True)
    played.workers[1].say(ready=True)
    wait_until(lambda: played.healer.waits)
    again.end()
    wait_until(lambda: not played.healer.can_heal)
    assert not played.healer.waits
    played.lose()
    assert not played.roster.has_to_meet(), "it ended in the middle of a look"


def test_without_a_socket_nothing_heals_and_it_is_told_once(tmp_path, capsys):
    healer = Healer(SimpleNamespace(), tmp_path / ("long" * 50), Clock())
    healer.start()
    healer.start()
    assert capsys.readouterr().err.count("losses cost a restart: ") == 1


def test_an_error_of_its_own_is_told_and_left_to_torchs_agent(played, capsys):
    played.lose()
    played.say(ready=True)  # the roster has no answer
    wait_until(lambda: played.healer.refused)
    assert not played.healer.can_heal
    told = "not healed: IndexError('pop from empty list'); the workers start anew"
    assert told in capsys.readouterr().err
