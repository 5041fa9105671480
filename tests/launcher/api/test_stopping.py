"""Who ends a run that is stopped: its launcher, if that answers in time, else whoever asks."""

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher.api import stopping
from launcher.api.stopping import read_kept, stop_run
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import InputError, TargetError
from launcher.contract.process_stat import is_stopped
from launcher.contract.protocol import STOP_RUN_FILE
from launcher.follow.loop import write_outcome
from launcher.follow.requests import KEEP, request_stop
from launcher.runs.folder import RunFolder
from tests.launcher.api.conftest import mark
from tests.waiting import StoppedClock, wait_until

NAME = "digits-0a1b2c"
STOPPED, LOST = f"{NAME}: stopped, stop-requested", f"{NAME}: stopped, launcher-lost"
GONE = "nothing of it runs any more"


@dataclass
class Kept:
    """A job's object on a cluster."""

    suspended: bool | None = None
    ends: list[bool] = field(default_factory=list)

    def end(self, notes: list[str], *, keep: bool) -> None:
        self.ends.append(keep)
        self.suspended = True
        notes.append("its pods end")

    def render_resuming(self) -> str:
        return "kubectl patch"

    def is_suspended(self) -> bool | None:
        return self.suspended


class Scene:
    """A run with a launcher that is a process of the test's own, and a clock that stands."""

    def __init__(self, run: RunFolder, ends: list[tuple[float, float]]) -> None:
        self.run, self.ends = run, ends
        self.clock = StoppedClock(on_sleep=self._play)
        self.process = subprocess.Popen(["sleep", "600"])
        self.events: dict[float, Callable[[], object]] = {}

    def follow(self, elsewhere: str = "") -> None:
        mark(self.run, self.process.pid, elsewhere)

    def _play(self, _: float) -> None:
        for at in [at for at in self.events if at <= self.clock.now + 0.001]:
            self.events.pop(at)()

    def answer(self, cause: Cause = Cause.STOP_REQUESTED) -> None:
        write_outcome(self.run, self.run.read_plan(), Ending(cause=cause), 2.0)

    def die(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self, number: signal.Signals = signal.SIGSTOP) -> None:
        self.process.send_signal(number)
        wait_until(lambda: is_stopped(self.process.pid) == (number == signal.SIGSTOP))

    def stop(self, grace_s: float | None = None, **options: Any) -> list[str]:
        return stop_run(self.run, grace_s, self.clock, **options).splitlines()


@pytest.fixture
def scene(make_run: Callable[..., Any], on_local: Callable[..., None]) -> Iterator[Scene]:
    ends: list[tuple[float, float]] = []
    scene = Scene(make_run(stop_grace_s=20)[0], ends)
    on_local(stop=lambda target, run_id, grace_s: ends.append((round(scene.clock.now), grace_s)))
    yield scene
    scene.die()


@pytest.mark.parametrize(
    ("grace_s", "answers_s", "told", "ends", "took_s"),
    [
        (None, 5, STOPPED, [], 5),
        (5, 12, STOPPED, [(5, 0)], 12),  # it would give the job's own grace
        (None, 60, f"{STOPPED}; {GONE}", [(50, 20)], 50),
        (5, 60, f"{STOPPED}; {GONE}", [(5, 0), (35, 5)], 35),
        (40, 80, f"{STOPPED}; {GONE}", [(70, 40)], 70),
    ],
)
def test_a_launcher_has_the_grace_and_a_margin_to_end_its_run(
    grace_s, answers_s, told, ends, took_s, scene
):
    scene.follow()
    scene.events = {answers_s: scene.answer}
    assert scene.stop(grace_s) == [told]
    assert (scene.ends, scene.clock.now) == (ends, pytest.approx(took_s, abs=0.15))
    assert (scene.run.path / STOP_RUN_FILE).read_text() not in ("", KEEP)


def test_a_launcher_that_is_stopped_is_not_waited_for_and_named(scene):
    scene.follow()
    scene.freeze()
    scene.events = {1: lambda: scene.freeze(signal.SIGCONT), 5: scene.freeze}
    pid = scene.process.pid
    note = f"its launcher (pid {pid}) is stopped; end it: kill -9 {pid}"
    assert scene.stop() == [f"{STOPPED}; {GONE}", note]
    assert scene.ends == [(6, 20)], "the first time a shell continued it within a second"


def test_a_launcher_that_dies_is_not_waited_for(scene):
    scene.follow()
    scene.events = {3: scene.die}
    assert scene.stop() == [f"{STOPPED}; {GONE}"]
    assert scene.ends == [(3, 20)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_on_a_full_disk_a_launcher_is_asked_by_a_signal(code, scene, monkeypatch):
    def fail(run: RunFolder, *, keep: bool) -> None:
        raise OSError(code, "no")

    scene.follow()
    monkeypatch.setattr(stopping, "request_stop", fail)
    if code == errno.ENOSPC:
        assert scene.stop() == [f"{STOPPED}; {GONE}"]
        assert scene.process.wait() == -signal.SIGTERM
    else:
        with pytest.raises(PermissionError):
            scene.stop()


@pytest.mark.parametrize(("grace_s", "took_s"), [(5, 50), (40, 70)])
def test_a_launcher_on_another_machine_is_asked_through_the_folder(grace_s, took_s, scene):
    scene.follow(elsewhere="another")
    with pytest.raises(TargetError, match=f"STILL RUNNING: {NAME}: its launcher, on another"):
        scene.stop(grace_s)
    assert scene.clock.now == pytest.approx(took_s, abs=0.15)
    scene.events = {took_s + 5: scene.answer}
    assert scene.stop(grace_s) == [STOPPED]
    assert (scene.run.path / STOP_RUN_FILE).read_text() not in ("", KEEP)
    assert scene.ends == []
    assert scene.stop() == [f"{STOPPED}; {GONE}"], "whoever asks may remove what is left"


def fail(*_: object) -> None:
    raise TargetError("no answer", "wait")


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (lambda scene, on_local: None, LOST),
        (lambda scene, on_local: request_stop(scene.run, keep=False), STOPPED),
        (lambda scene, on_local: on_local(find_end=fail), STOPPED),
        (lambda scene, on_local: scene.answer(Cause.COMPLETED), f"{NAME}: succeeded, completed"),
    ],
    ids=["ended unseen", "asked before", "target silent", "ended well"],
)
def test_what_no_launcher_follows_is_ended_at_once_and_judged_by_what_is_known(
    before, told, scene, on_local
):
    before(scene, on_local)
    assert scene.stop() == [f"{told}; {GONE}"] == scene.stop()
    looked = [(0, 0)] * (told == LOST)
    assert (scene.ends, scene.clock.now) == ([*looked, (0, 20), (0, 20)], 0)
    is_asked = (scene.run.path / STOP_RUN_FILE).exists()
    assert is_asked == told.endswith("stop-requested"), "a run that had ended was not stopped"


def test_a_run_that_is_kept_has_its_object_suspended_until_that_is_resumed(scene, on_local):
    with pytest.raises(InputError, match=f"--keep: {NAME} is on no cluster"):
        scene.stop(keep=True)
    kept, resume = Kept(), "its object is kept; resume it: kubectl patch"
    on_local(suspension=lambda *_: kept, find_end=lambda *_: None)
    assert scene.stop(keep=True) == [f"{STOPPED}; {resume}", "its pods end"]
    assert (kept.ends, scene.ends) == ([True], [])
    plan, outcome = scene.run.read_plan(), scene.run.read_outcome()
    assert read_kept(scene.run, plan) == (outcome, True)
    kept.suspended = None  # a cluster that does not answer
    assert read_kept(scene.run, plan) == (outcome, False)
    kept.suspended = False
    assert read_kept(scene.run, plan) == (None, False)
    names = {path.name for path in scene.run.path.iterdir()}
    assert "outcome-of-stop.json" in names
    assert not names & {"outcome.json", STOP_RUN_FILE}
    # Its launcher does the same.
    scene.follow()
    scene.events = {1: scene.answer}
    assert scene.stop(0, keep=True) == [f"{STOPPED}; {resume}"]
    assert ((scene.run.path / STOP_RUN_FILE).read_text(), scene.ends) == (KEEP, [])


def test_a_run_that_has_ended_by_itself_is_not_kept(scene, on_local):
    on_local(suspension=lambda *_: Kept())
    scene.answer(Cause.COMPLETED)
    before = f"it had ended before, and is not resumed; launcher stop {NAME} removes what is left"
    assert scene.stop(keep=True) == [f"{NAME}: succeeded, completed; {before}"]
    assert os.listdir(scene.run.path).count(STOP_RUN_FILE) == 0
