"""What a node decides between two attempts, and while one goes on. Its group is played."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from launcher.agent.endings import COMPLETED, OTHERS_FINISHED, Again
from launcher.agent.engine import torch_agent
from launcher.agent.engine.rendezvous import Admission
from launcher.agent.engine.torch_agent import NodeHandler
from launcher.agent.engine.torch_settings import configure, name_endpoint
from launcher.agent.membership.group import GroupStatus, Member, Membership, RoundCause
from launcher.agent.stopping import StopFiles
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.node_plan import Static
from tests.launcher.node_plans import node_plan
from tests.waiting import StoppedClock

FAILED, FULL = Ending(cause=Cause.TRAINING_FAILED), Ending(cause=Cause.DISK_FULL)
FAULT, PEER = Again(cause=Cause.WORKER_FAULT), Again(cause=Cause.LOST_PEER)


class Played:
    """A node and its group; ``did`` has what was done, in order."""

    def __init__(self, node_dir: Any) -> None:
        self.did: list[Any] = []
        self.losses: list[str] = []
        do = self.do
        mine = Membership(
            generation=2, cause=RoundCause.FAULT, first=Member("0.a", "10.0.0.1", 1234),
            rank=1, size=2, before=3, workers=4,
        )  # fmt: skip
        self.roster = SimpleNamespace(
            membership=mine, status=GroupStatus(), may_expect=False, is_closed=lambda: False,
            must_meet=lambda: False, expect=lambda: do("expect", mine),
            meet=lambda: do("meet", mine), leave=lambda: do("leave"), say=do, close=do,
            wait_until_closed=lambda: do("wait"), take_losses=lambda: tuple(self.losses),
        )  # fmt: skip
        self.healer = SimpleNamespace(
            comes_too_late=False, can_heal=False, refused="", joins=None, suspended=nullcontext,
            rounds=SimpleNamespace(open_roster=lambda: self.roster),
        )  # fmt: skip
        self.node: Any = SimpleNamespace(
            healer=self.healer, roster=None, ending=None, step=FAULT,
            attempts=SimpleNamespace(
                node_dir=node_dir, were_signalled=lambda: False, have_succeeded=lambda: False,
                forget_speaker=lambda: do("forget"), steps=int,
                collect_ends=lambda regroups: ("end",),
            ),
            record_ends=lambda ends: None,
            judge=SimpleNamespace(
                judge=lambda ends, steps, regroups: do(f"judge {regroups}", self.node.step)
            ),
            enter=do, wait_for_gpus=lambda: do("gpus"),
            on_rendezvous=lambda *place: do(place), on_restart=lambda *why: do(why),
            ledger=SimpleNamespace(write=lambda event, detail: do((event, detail))),
            looker=SimpleNamespace(take_look=lambda why, stacks: do(("look", why, stacks))),
        )  # fmt: skip
        self.handler = NodeHandler(self.node, None)  # type: ignore[arg-type]

    def do(self, what: Any, result: Any = None) -> Any:
        self.did.append(what)
        return result

    def take(self) -> list[Any]:
        self.did, done = [], self.did
        return done


@pytest.fixture
def played(tmp_path):
    made = Played(tmp_path)
    info = made.handler.next_rendezvous()
    assert (info.rank, info.world_size) == (1, 2)
    assert (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) == (
        "10.0.0.1", 1234,
    )  # fmt: skip
    assert info.store.get("") == b"[3, 4, 3, 4]"
    assert made.take() == ["rendezvous", "meet", (1, 2)]
    assert made.healer.joins is False
    return made


def meet(played: Played) -> list[Any]:
    """What is done before the next attempt, and how that ends if not by one."""
    played.take()
    try:
        played.handler.next_rendezvous()
    except (SignalException, RendezvousClosedError) as error:
        return [*played.take(), type(error)]
    return played.take()


JUDGED = ["restart", "judge False"]
AGAIN = ["forget", "gpus", "rendezvous", "meet"]


@pytest.mark.parametrize(
    ("step", "cause", "did", "ending"),
    [
        (FAULT, "fault", [("worker-fault", ("end",)), *AGAIN, (1, 2)], None),
        # Whether a peer was lost is known once the group has formed again.
        (PEER, "fault", [*AGAIN, ("worker-fault", ("end",)), (1, 2)], None),
        (PEER, "lost", [*AGAIN, ("lost-peer", ("end",)), (1, 2)], None),
        (FAILED, "lost", ["failed", RendezvousClosedError], FAILED),
        (FULL, "lost", [RendezvousClosedError], FULL),
    ],
)
def test_an_attempt_that_failed_is_judged_before_the_next(played, step, cause, did, ending):
    played.node.step = step
    played.roster.membership = SimpleNamespace(cause=RoundCause(cause))
    assert meet(played) == [*JUDGED, *did]
    assert played.node.ending == ending
    if ending is None:
        played.node.step = FAULT
        assert meet(played) == [*JUDGED, ("worker-fault", ("end",)), *AGAIN, (1, 2)]


def test_a_node_that_was_asked_to_stop_or_is_done_meets_nobody(played, monkeypatch):
    played.node.attempts.have_succeeded = lambda: True
    assert meet(played) == ["finish", "wait", RendezvousClosedError]
    assert played.node.ending == COMPLETED
    files = StopFiles(played.node.attempts.node_dir)
    files.write_request(protocol.STOP_REASON_RESIZE, at=1.0, deadline=2.0)
    played.node.attempts.have_succeeded = lambda: False
    assert meet(played)[:2] == JUDGED, "only others are let in"
    ask = lambda _: files.write_request("preempted", at=1.0, deadline=2.0)  # noqa: E731
    files.clear()
    clock = StoppedClock(on_sleep=lambda now: ask(now) if now > 1.9 else None)
    monkeypatch.setattr(torch_agent, "SystemClock", lambda: clock)
    played.node.attempts.were_signalled = lambda: True
    assert meet(played) == [SignalException], "the same signal asks the supervisor"
    files.clear()
    clock.on_sleep, clock.now = None, 0.0
    assert meet(played)[:2] == JUDGED
    assert clock.now == pytest.approx(2.0, abs=0.06)
    played.healer.comes_too_late = True
    assert played.handler.num_nodes_waiting() == 1
    assert meet(played) == ["leave", RendezvousClosedError]
    assert played.node.ending == OTHERS_FINISHED


def test_a_newcomer_expects_a_place_and_losses_are_told(tmp_path):
    played = Played(tmp_path)
    played.roster.may_expect, played.losses = True, ["node 1 is gone"]
    assert meet(played) == ["rendezvous", "expect", ("node-lost", "node 1 is gone"), (1, 2)]
    assert played.healer.joins is True


@pytest.mark.parametrize(
    ("healer", "roster", "newcomers", "waiting", "did"),
    [
        ({}, {}, 0, 0, []),
        ({}, {}, 1, 0, ["admit"]),
        ({}, {"must_meet": lambda: True}, 0, 1, [("node-lost", "x"), ("look", "loss", False)]),
        ({"refused": "why"}, {}, 0, 1, []),
        ({"can_heal": True}, {"must_meet": lambda: True}, 0, 0, [("node-lost", "x")]),
        ({"can_heal": True}, {}, 1, 0, ["admit"]),
        ({"can_heal": True}, {"is_closed": lambda: True, "must_meet": lambda: True}, 0, 1, []),
    ],
)
def test_torchs_agent_is_told_of_a_change_that_nothing_heals(
    played, healer, roster, newcomers, waiting, did
):
    vars(played.healer).update(healer)
    vars(played.roster).update(roster, status=GroupStatus(newcomers=newcomers))
    played.losses = ["x"] if any("node-lost" in one for one in did) else []
    assert played.handler.num_nodes_waiting() == waiting
    assert played.take() == did
    played.losses, played.roster.must_meet, played.healer.refused = [], (lambda: False), ""
    played.handler.num_nodes_waiting()
    assert meet(played)[1] == f"judge {bool(waiting)}", "it was the agent that ended the workers"
    assert meet(played)[:2] == JUDGED


@pytest.mark.parametrize("answers", [True, False])
def test_newcomers_come_in_when_the_training_has_committed_or_takes_too_long(answers, tmp_path):
    files, clock, said = StopFiles(tmp_path), StoppedClock(now=100.0), []
    roster = SimpleNamespace(status=GroupStatus(newcomers=1), say=said.append)
    admission = Admission(files, SimpleNamespace(roster=roster), clock)  # type: ignore[arg-type]
    (tmp_path / protocol.STOP_READY_FILE).touch()
    admission.poll()
    request = files.read_request()
    assert (request.reason, request.at, request.deadline) == ("resize", 100.0, 160.0)
    clock.now = 160.0
    admission.poll()
    assert not said
    if answers:
        (tmp_path / protocol.STOP_ACK_FILE).write_text('{"step": 3}')
    else:
        clock.now = 160.1
    admission.poll()
    assert said == ["admit"]
    # When they have gone again, their request and its answer go too.
    roster.status = GroupStatus(newcomers=0)
    admission.poll()
    assert not files.is_requested()
    files.write_request("preempted", at=1.0, deadline=2.0)
    assert not files.has_answer(), "a stop waits for an answer of its own"
    (tmp_path / protocol.STOP_ACK_FILE).write_text('{"step": 4}')
    admission.poll()
    assert files.read_answer() == {"step": 4}
    roster.status = GroupStatus(newcomers=1)
    admission.poll()
    assert files.read_request().reason == "preempted"
    assert said == ["admit"]


def test_torch_is_told_where_nodes_meet():
    for host, port, told in (("10.0.0.1", 5, "10.0.0.1:5"), ("fd00::1", 6, "[fd00::1]:6")):
        meets = node_plan({"endpoint_host": host, "endpoint_port": port})
        assert (name_endpoint(meets), configure(meets)) == (told, {})
        static = replace(
            meets, node_index=1, rendezvous=Static(master_addr=host, master_port=port, id="r")
        )
        assert (name_endpoint(static), configure(static)) == (told, {"rank": 1})
