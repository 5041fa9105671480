"""Who ends a run that is stopped: its launcher, if that answers in time, else whoever asks."""

import errno
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher.api import stopping
from launcher.api.stopping import read_kept, stop_run
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import LauncherError, TargetError
from launcher.contract.process_stat import is_stopped
from launcher.contract.protocol import OUTCOME_FILE, STOP_RUN_FILE
from launcher.follow.loop import write_outcome
from launcher.follow.requests import request_stop
from launcher.runs.folder import RunFolder
from tests.launcher.api.conftest import OnLocal, mark
from tests.waiting import StoppedClock, wait_until


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
    """A run with a launcher that is a process of the test's own, and a clock that stands.

    ``at`` has what happens while the stop waits, by seconds.
    """

    def __init__(self, run: RunFolder, on_local: OnLocal) -> None:
        self.run, self.on_local = run, on_local
        self.clock = StoppedClock(on_sleep=self._play)
        self.process = subprocess.Popen(["sleep", "600"])
        self.at: dict[float, Callable[[], object]] = {}
        self.ends: list[str] = []
        on_local(stop=self._stop)

    def _stop(self, run_id: str, grace_s: float) -> None:
        self.ends.append(f"after {self.clock.now:.0f} s, within {grace_s} s")

    def _play(self, _: float) -> None:
        for at in [at for at in self.at if at <= self.clock.now + 0.001]:
            self.at.pop(at)()

    def follow(self, elsewhere: str = "", **at: Callable[[], object]) -> None:
        mark(self.run, self.process.pid, elsewhere)
        self.at = {float(name[1:]): event for name, event in at.items()}

    def answer(self, cause: Cause = Cause.STOP_REQUESTED) -> None:
        write_outcome(self.run, self.run.read_plan(), Ending(cause=cause), 2.0)

    def die(self) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        wait_until(lambda: is_stopped(self.process.pid) == (number == signal.SIGSTOP))

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def tell(self, grace_s: float | None = None, *, keep: bool = False) -> str:
        """Stops the run: what is said, what is ended, how long it takes, and the request."""
        try:
            said = stop_run(self.run, grace_s, self.clock, keep=keep)
        except (LauncherError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
        request = self.run.path / STOP_RUN_FILE
        asked = request.read_text().strip() if request.exists() else "no request"
        lines = (*said.replace(str(self.process.pid), "PID").splitlines(), *self.ends)
        return "".join(f"  {line}\n" for line in (*lines, f"{self.clock.now:.0f} s; {asked}"))


def fail(*_: object) -> None:
    raise TargetError("no answer", "wait")


def freeze_twice(scene: Scene) -> None:
    scene.freeze()
    scene.follow(_1=lambda: scene.send(signal.SIGCONT), _5=scene.freeze)


SCENES: dict[str, tuple[Callable[[Scene], object], dict[str, Any]]] = {
    "its launcher answers": (lambda s: s.follow(_5=s.answer), {}),
    "its launcher gives the job's own grace": (lambda s: s.follow(_12=s.answer), {"grace_s": 5}),
    "its launcher does not answer": (lambda s: s.follow(), {}),
    "it does not answer within a shorter grace": (lambda s: s.follow(), {"grace_s": 5}),
    "it does not answer within a longer grace": (lambda s: s.follow(), {"grace_s": 40}),
    "its launcher is stopped, but for a moment continued by a shell": (freeze_twice, {}),
    "its launcher dies": (lambda s: s.follow(_3=s.die), {}),
    "its launcher has just ended it": (lambda s: (s.follow(), s.answer(Cause.COMPLETED)), {}),
    "its launcher is elsewhere": (lambda s: s.follow("gpu1", _5=s.answer), {}),
    "one elsewhere does not answer": (lambda s: s.follow("gpu1"), {"grace_s": 5}),
    "nor within a longer grace": (lambda s: s.follow("gpu1"), {"grace_s": 40}),
    "one elsewhere has ended it": (lambda s: (s.follow("gpu1"), s.answer()), {}),
    "it ended unseen": (lambda s: None, {}),
    "it was asked to stop and ended unseen": (lambda s: request_stop(s.run, keep=False), {}),
    "it ended well": (lambda s: s.answer(Cause.COMPLETED), {}),
    "it is on no cluster": (lambda s: None, {"keep": True}),
    "its target is silent": (lambda s: s.on_local(find_end=fail), {}),
    "its target stays silent": (lambda s: s.on_local(find_end=fail, stop=fail), {}),
}


@pytest.fixture
def scene(make_run, on_local):
    scenes = []

    def make() -> Scene:
        run, _ = make_run(name=f"digits-{len(scenes)}", stop_grace_s=20)
        scenes.append(Scene(run, on_local))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.die()


def test_who_ends_a_run_and_when_and_what_is_said(scene, expect_golden):
    told = ""
    for name, (begin, options) in SCENES.items():
        begin(stage := scene())
        told += f"{name}\n{stage.tell(**options)}"
    expect_golden("stops.txt", told)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("keep", [True, False])
def test_on_a_full_disk_a_launcher_is_asked_by_a_signal(code, keep, scene, monkeypatch):
    def refuse(run: RunFolder, *, keep: bool) -> None:
        raise OSError(code, "no")

    stage = scene()
    stage.follow()
    stage.on_local(suspension=lambda *_: Kept())
    monkeypatch.setattr(stopping, "request_stop", refuse)
    if code == errno.ENOSPC and not keep:
        assert "stopped, stop-requested; nothing of it runs any more" in stage.tell()
        assert stage.process.wait() == -signal.SIGTERM
    else:
        assert "Error: [Errno" in stage.tell(keep=keep)
        assert stage.process.poll() is None


def test_a_run_that_is_kept_has_its_object_suspended_until_that_is_resumed(scene, expect_golden):
    kept, stage = Kept(), scene()
    stage.on_local(suspension=lambda *_: kept, find_end=lambda *_: None)
    told = f"kept\n{stage.tell(keep=True)}"
    plan, outcome = stage.run.read_plan(), stage.run.read_outcome()
    for suspended, seen in (
        (True, (outcome, True)),
        (None, (outcome, False)),
        (False, (None, False)),
    ):
        kept.suspended = suspended
        assert read_kept(stage.run, plan) == seen
    names = {path.name for path in stage.run.path.iterdir()}
    assert "outcome-of-stop.json" in names
    assert not names & {OUTCOME_FILE, STOP_RUN_FILE}
    stage.follow(_1=stage.answer)
    told += f"resumed, and kept by its launcher\n{stage.tell(0, keep=True)}"
    assert kept.ends == [True]
    ended = scene()
    ended.answer(Cause.COMPLETED)
    told += f"it had ended by itself\n{ended.tell(keep=True)}"
    expect_golden("stops-kept.txt", told)
