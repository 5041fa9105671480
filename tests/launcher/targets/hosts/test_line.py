"""A launcher's line to a host: what it asks and believes, and when it connects anew."""

import queue
import threading
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.hosts.connection import HostLine, copy_once, send_beats
from launcher.targets.hosts.program.messages import Answered, FilePart, NodeSeen, NodesSeen
from launcher.targets.hosts.program.watch import send_run, watch_run
from tests.waiting import StoppedClock, wait_until

RUNNING, MISSING = NodeSeen(state="running"), NodeSeen(state="missing")
RUN_DIR = "/home/gpu1/.launcher/runs/r"
PART = FilePart(file="nodes/0/0/console.log", offset=0, new=True, at=1.0)


class Talk:
    """A session whose host says ``told``, and is then silent until it is killed."""

    def __init__(self, *told: tuple[Any, bytes]) -> None:
        self.did: list[Any] = []
        self._told, self._killed = [*told], threading.Event()

    def ask(self, limit_s: float, function: Any, **given: Any) -> None:
        self.did.append((limit_s, function, given))

    def receive(self, limit_s: float | None = None) -> tuple[Any, bytes]:
        if not self._told:
            self._killed.wait(30)
            raise TargetError("gpu1: it is gone")
        return self._told.pop(0)

    def beat(self) -> None:
        self.did.append("beat")

    def kill(self) -> None:
        self.did.append("kill")
        self._killed.set()

    def close(self) -> None:
        self.did.append("close")


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def plan(make_host_plan: Callable[..., LaunchPlan], tmp_path: Path) -> LaunchPlan:
    return replace(make_host_plan(), run_id="r", run_dir=str(tmp_path))


@pytest.fixture
def make_line(plan: LaunchPlan, clock: StoppedClock) -> Callable[..., Any]:
    """An open line over these sessions, one after the other; and the hosts it disconnected from."""

    def make(*talks: Talk) -> tuple[HostLine, list[str]]:
        left, cut = [*talks], list[str]()

        def open_next(host: Any) -> Talk:
            if not left:
                raise TargetError("gpu1: it does not answer")
            return left.pop(0)

        ssh: Any = Namespace(open=open_next, disconnect=lambda host: cut.append(host.name))
        line = HostLine(ssh, plan, 0, clock, follows=True)
        return line, cut

    return make


def test_a_line_asks_for_what_is_missing_here_and_says_what_it_is_told(make_line, tmp_path, clock):
    (tmp_path / "ledger.jsonl").write_text("123")
    (tmp_path / "plan.json").write_text("{}")
    talk = Talk((PART, b"hello"), (NodesSeen(nodes={"0.0": RUNNING}), b""))
    line, _ = make_line(talk)
    wait_until(line.has_reported.is_set)
    have = {"ledger.jsonl": 3}
    asked = {"run_dir": RUN_DIR, "node": 0, "have": have, "follows": True}
    assert talk.did == [(8.0, watch_run, asked)]
    assert (tmp_path / PART.file).read_bytes() == b"hello"
    assert [line.state(node) for node in ("0.0", "0.1")] == [RUNNING, MISSING]
    clock.now = 4.9
    assert line.silent_s() == 4.9
    line.close()
    assert talk.did[1:] == ["kill", "close"]
    line.beat()
    assert talk.did[3:] == []


def test_a_node_runs_from_its_start_until_its_host_has_reported_it(make_line, tmp_path, clock):
    says: queue.Queue[Any] = queue.Queue()

    class Slow(Talk):
        def receive(self, limit_s: float | None = None) -> tuple[Any, bytes]:
            if told := says.get(timeout=30):
                return told
            raise TargetError("gpu1: it is gone")

        def kill(self) -> None:
            says.put(None)

    line, _ = make_line(Slow())
    says.put((NodesSeen(nodes={"0.0": RUNNING}), b""))
    wait_until(line.has_reported.is_set)
    line.started("0.1")
    # What the earlier one has left is still on its way.
    says.put((PART, b"a large file"))
    wait_until((tmp_path / PART.file).exists)
    clock.now = 60.0
    assert line.state("0.1") == RUNNING
    for nodes in ({"0.1": RUNNING}, {}):
        says.put((NodesSeen(nodes=nodes), b""))
    wait_until(lambda: line.state("0.1") == MISSING)
    line.close()


def test_a_write_that_hangs_here_holds_up_no_beat(make_line, tmp_path, monkeypatch):
    """As on a file server that is away: the host would end its node."""
    is_there = threading.Event()
    write = "launcher.targets.hosts.connection.write_at"
    monkeypatch.setattr(write, lambda *_: is_there.wait(30))
    monkeypatch.setattr("launcher.targets.hosts.connection.BEAT_S", 0.01)
    talk = Talk((PART, b"hello"), (NodesSeen(nodes={}), b""))
    line, _ = make_line(talk)
    is_over = send_beats(lambda: [line])
    wait_until(lambda: talk.did.count("beat") >= 3)
    assert not line.has_reported.is_set()
    is_there.set()
    is_over.set()
    line.close()


def test_a_silent_connection_is_replaced_and_a_dead_one_is_shared_no_more(make_line, clock):
    first, second = Talk((NodesSeen(nodes={}), b"")), Talk()
    line, cut = make_line(first, second)
    wait_until(line.has_reported.is_set)
    clock.now = 8.0
    line.beat()
    assert first.did[1:] == ["beat"]
    clock.now = 8.1
    line.beat()
    wait_until(lambda: second.did)
    assert (first.did[2:], cut, clock.now) == (["kill", "close"], ["gpu1"], 9.1)
    # The second is new, and has not been silent for so long.
    wait_until(lambda: line._opened_at == 9.1)
    line.beat()
    assert second.did[1:] == ["beat"]
    line.close()


def test_a_copy_ends_with_the_states_and_whether_a_launcher_follows_or_what_was_not_copied(
    plan, tmp_path
):
    told = [(PART, b"hello"), (Answered(value=[{"0.0": RUNNING}, True]), b"")]
    talk: Any = Talk(*told)
    assert copy_once(talk, plan, 0, beside_code_bytes=7) == ({"0.0": RUNNING}, True)
    asked = {"run_dir": RUN_DIR, "node": 0, "have": {}, "beside_code_bytes": 7}
    assert talk.did == [(3600.0, send_run, asked)]
    # A folder is in the way, as a full disk would be.
    (tmp_path / PART.file).unlink()
    (tmp_path / PART.file).mkdir()
    talk = Talk(*told)
    assert copy_once(talk, plan, 0)[1] is True
    assert talk.did == [(3600.0, send_run, {**asked, "beside_code_bytes": 0})]
    talk = Talk(*told)
    with pytest.raises(TargetError) as error:
        copy_once(talk, plan, 0, is_last=True)
    why = f"gpu1: {PART.file} could not be copied here (Is a directory); the host keeps it"
    fix = f"correct that in {tmp_path}, then launcher stop r"
    assert (error.value.what, error.value.hint) == (why, fix)
