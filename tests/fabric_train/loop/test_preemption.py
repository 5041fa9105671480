import json
import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from fabric_train.loop.preemption import PreemptedError, Preemption, Wish
from fabric_train.worker_env import STOP_REASON_RESIZE
from fabric_train.worlds import WorldLostError
from launcher.agent.stopping import StopFiles
from launcher.contract.causes import Cause

PROGRAM = Path(__file__).parent / "programs" / "leaving.py"


@pytest.fixture
def files(tmp_path) -> StopFiles:
    """The agent's side."""
    return StopFiles(tmp_path)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def preemption(tmp_path) -> Preemption:
    return Preemption(tmp_path, clock=Clock())


def test_each_request_is_heard_once_and_answered_with_the_committed_step(files, preemption):
    assert not files.training_will_answer()
    preemption.announce()
    assert files.training_will_answer()
    assert preemption.look() is Wish.NOTHING
    preemption.answer(1, Path("nobody-asked"))
    assert files.read_answer() is None
    files.write_request(Cause.PREEMPTED.value, at=10.0, deadline=40.0)
    assert preemption.look() is Wish.STOP
    preemption.answer(5, None)
    assert files.read_answer() is None, "nothing was committed"
    assert preemption.look() is Wish.NOTHING
    files.write_request(Cause.INTERRUPTED.value, at=20.0, deadline=50.0)
    assert preemption.look() is Wish.STOP
    preemption.answer(7, Path("step-7"))
    assert files.read_answer() == {"step": 7, "checkpoint": "step-7"}
    assert preemption.look() is Wish.NOTHING


def test_room_for_newcomers_asks_for_a_commit_alone(tmp_path, preemption):
    (tmp_path / "stop-request").write_text(
        json.dumps({"reason": "resize", "at": 1.0, "deadline": 60.0})
    )
    assert preemption.look() is Wish.COMMIT


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"reason": "x", "at": "y"}'])
def test_a_request_that_cannot_be_read_is_none(tmp_path, preemption, text):
    (tmp_path / "stop-request").write_text(text)
    assert preemption.look() is Wish.NOTHING


def test_without_an_agent_nothing_is_heard_and_nothing_said():
    preemption = Preemption(None)
    preemption.announce()
    assert preemption.look() is Wish.NOTHING
    preemption.answer(1, Path("a"))


def test_who_is_not_ended_in_time_ends_as_preempted(files, preemption):
    files.write_request(Cause.PREEMPTED.value, at=time.time(), deadline=time.time() + 0.2)
    preemption.answer(1, Path("a"))
    with pytest.raises(PreemptedError):
        preemption.wait_for_sigterm()


def test_a_node_that_is_asked_after_its_peers_is_answered_while_it_waits(files, preemption):
    preemption.answer(7, Path("step-7"))
    ask = threading.Timer(
        0.2,
        lambda: files.write_request(
            Cause.PREEMPTED.value, at=time.time(), deadline=time.time() + 0.5
        ),
    )
    ask.start()
    with pytest.raises(PreemptedError):
        preemption.wait_for_sigterm()
    ask.join()
    assert files.read_answer() == {"step": 7, "checkpoint": "step-7"}


def test_a_node_whose_peers_alone_leave_goes_on_in_the_next_world(monkeypatch, files, preemption):
    monkeypatch.setattr("fabric_train.loop.preemption.REQUEST_LIMIT_S", 0.2)
    files.write_request(STOP_REASON_RESIZE, at=time.time(), deadline=time.time() + 60)
    preemption.answer(6, Path("step-6"))
    with pytest.raises(WorldLostError):
        preemption.wait_for_sigterm(Mock(side_effect=WorldLostError))
    files.write_request(Cause.PREEMPTED.value, at=time.time(), deadline=time.time() + 0.5)
    with pytest.raises(PreemptedError):
        preemption.wait_for_sigterm(Mock(side_effect=WorldLostError))


# -- SIGTERM ---------------------------------------------------------------------------------


def begin(processes, how: str, file: Path, **env: str):
    process = processes.start("-u", str(PROGRAM), how, str(file), **env)
    return process, process.stdout.readline().decode().strip()


@pytest.mark.parametrize(
    ("how", "left_s"), [("stuck", "60.0"), ("held", "60.0"), ("endless", None)]
)
def test_sigterm_ends_a_process_that_is_stuck_within_the_grace(
    processes, finish, tmp_path, how, left_s
):
    process, _ = begin(processes, how, tmp_path / "finished")
    process.terminate()
    assert finish(process)[0] == 143
    found = [path.read_text() for path in tmp_path.glob("finished")]
    assert found == ([left_s] if left_s else []), "what takes longer is left undone"


def test_after_a_request_a_commit_may_take_the_rest_of_the_deadline(processes, finish, tmp_path):
    StopFiles(tmp_path).write_request(
        Cause.PREEMPTED.value, at=time.time(), deadline=time.time() + 3600
    )
    process, _ = begin(processes, "stuck", tmp_path / "finished", NODE=str(tmp_path))
    process.terminate()
    assert finish(process)[0] == 143
    assert float((tmp_path / "finished").read_text()) > 3000


def test_sigterm_to_a_child_ends_the_child_alone(processes, finish, tmp_path):
    process, pid = begin(processes, "child", tmp_path / "finished")
    os.kill(int(pid), signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out.strip()) == (0, "child ended with -15")
