"""Which workers hang, by beats, processor time and a clock that are played."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.agent import processes
from launcher.agent.engine.monitoring.watchdog import Silence, SilenceBook, Watchdog, decide_hung
from launcher.agent.worker.heartbeat import WorkerBeat
from launcher.contract.node_plan import AgentSettings
from tests.waiting import StoppedClock, wait_until

LIMITS = AgentSettings(hang_factor=10, hang_min_s=5, hang_max_s=60)


def beat(at: float, *, steps: int = 1, pid: int = 1) -> WorkerBeat:
    return WorkerBeat(pid=pid, number=steps + 1, steps=steps, at=at)


def test_the_limit_is_learned_and_bounded():
    one = SilenceBook(LIMITS)
    assert one.limit_s == 5
    # Nothing is learned before the first step, of another process, or of a clock that went back.
    for at, of in ((0.0, {"steps": 0}), (3.0, {}), (6.0, {"pid": 2}), (5.0, {"pid": 2})):
        one.find_silent({0: beat(at, **of)}, at)
    assert one.limit_s == 5
    for at in (6.0, 8.0, 9.0):
        one.find_silent({0: beat(at, pid=2)}, at)
    assert one.limit_s == 20
    one.new_attempt()
    one.find_silent({0: beat(48.0, pid=2)}, 48.0)
    assert one.limit_s == 20
    one.find_silent({0: beat(88.0, pid=2)}, 88.0)
    assert one.limit_s == 60


def test_silence_is_judged_after_the_first_step_alone_and_not_without_a_limit():
    one = SilenceBook(LIMITS)
    assert one.find_silent({0: beat(0.0, steps=0)}, 1000.0) == ()
    assert one.find_silent({0: beat(0.0)}, 5.0) == ()
    (silent,) = one.find_silent({0: beat(0.0), 1: beat(6.0)}, 6.0)
    assert (silent.rank, silent.silent_s, silent.limit_s) == (0, 6.0, 5.0)
    none = SilenceBook(AgentSettings(hang_factor=10, hang_min_s=0, hang_max_s=60))
    assert none.find_silent({0: beat(0.0)}, 1e6) == ()


def test_time_for_which_the_whole_node_stood_still_is_no_silence():
    one = SilenceBook(LIMITS)
    one.find_silent({0: beat(1.0)}, 1.0)
    one.wake(3600.0)
    assert one.find_silent({0: beat(1.0)}, 3604.0) == ()
    (silent,) = one.find_silent({0: beat(1.0)}, 3606.0)
    assert silent.silent_s == 6.0
    one.find_silent({0: beat(3605.0)}, 3605.0)
    assert one.limit_s == 50, "learned from 5 s, and not from an hour"


@pytest.mark.parametrize(
    ("silent_s", "workers", "busy", "hangs"),
    [(6, 1, False, True), (6, 2, False, False), (59, 1, True, False), (60, 1, True, True)],
)
def test_a_group_hangs_when_all_are_silent_and_none_computes(silent_s, workers, busy, hangs):
    silent = Silence(rank=0, silent_s=silent_s, limit_s=5)
    assert (decide_hung((silent,), workers, busy, LIMITS.hang_max_s) is not None) is hangs
    assert decide_hung((), 0, busy, LIMITS.hang_max_s) is None


class Watched:
    """A node of two workers that have made a step each, as its watchdog sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
        self.beats = {0: beat(0.0, steps=3, pid=100), 1: beat(-0.5, steps=2, pid=101)}
        self.running, self.waits, self.share = [0, 1], False, 0.0
        self.killed: list[tuple[int, int]] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.clock, self.looks = StoppedClock(), ["looks/hang-1"]
        self.attempts = SimpleNamespace(
            number=0,
            beats=lambda: self.beats,
            running=lambda: tuple(
                SimpleNamespace(rank=rank, heartbeat=scratch / f"heartbeat-0-{rank}")
                for rank in self.running
            ),
        )
        ledger = SimpleNamespace(write=lambda event, **values: self.told.append((event, values)))
        looker = SimpleNamespace(take_look=lambda why: self.looks.pop(), answer=lambda: None)
        monkeypatch.setattr(processes, "tree_of", lambda pid: (pid,))
        monkeypatch.setattr(processes, "cpu_seconds", lambda pids: self.clock.now * self.share)
        monkeypatch.setattr(processes, "send", lambda *sent: self.killed.append(sent))
        settings = (self.attempts, LIMITS, ledger, looker, self.clock, lambda: self.waits)
        self.watchdog = Watchdog(*settings)  # type: ignore[arg-type]

    def look_until(self, end: float, *, every: float = 0.25) -> None:
        while self.clock.now < end:
            self.clock.now += every
            self.watchdog.poll()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    return Watched(monkeypatch, tmp_path)


def test_a_hang_is_proved_by_two_looks_told_and_ended_once(watched, tmp_path, capfd):
    watched.look_until(6.0)
    assert watched.told == [("first-step", {"attempt": 0})]
    assert not watched.killed, "both are silent from 5.25 s on, which is not a second"
    watched.look_until(20.0)
    assert watched.killed == [(100, signal.SIGKILL), (101, signal.SIGKILL)]
    hung = {path.name for path in tmp_path.iterdir()}
    assert hung == {"hung-heartbeat-0-0", "hung-heartbeat-0-1"}
    assert capfd.readouterr().err.endswith(
        "rank 1 has hung for 6.8 s (limit 5.0 s): beat 3, at step 2, was its last in two reads "
        "1.0 s apart, between which each worker used 0.0% of a core; stacks are in looks/hang-1\n"
    )
    hang = {
        "attempt": 0, "rank": 1, "silent_s": 6.75, "limit_s": 5.0, "steps": 2, "beat": 3,
        "beat_at": -0.5, "read_at": (5.25, 6.25), "cpu_share": 0.0,
    }  # fmt: skip
    assert watched.told[1:] == [("hang", hang)]
    watched.attempts.number, watched.looks = 1, [None]
    watched.look_until(27.0)
    assert [event for event, _ in watched.told[2:]] == ["first-step", "hang"]
    assert "stacks are in no file: they could not be written" in capfd.readouterr().err


def test_workers_that_compute_hang_at_the_upper_bound_alone(watched, capfd):
    watched.share = 0.06
    watched.look_until(59.0)
    assert not watched.killed
    watched.look_until(62.0)
    told = capfd.readouterr().err
    assert "(limit 60.0 s)" in told
    assert "each worker used 6.0% of a core" in told


@pytest.mark.parametrize(
    ("change", "is_killed"),
    [
        (lambda one: one.beats.update({1: beat(30.0, pid=101)}), False),
        (lambda one: one.beats.update({1: beat(0.0, steps=0, pid=101)}), False),
        (lambda one: one.beats.pop(1), False),
        (lambda one: one.running.pop(), True),
        (lambda one: one.running.clear(), False),
        (lambda one: setattr(one, "share", 0.04), True),
        (lambda one: setattr(one, "waits", True), False),
    ],
)
def test_a_group_hangs_when_all_that_run_are_silent(watched, change, is_killed):
    change(watched)
    watched.look_until(30.0)
    assert bool(watched.killed) is is_killed


def test_a_beat_or_a_pause_of_the_node_begins_the_proof_anew(watched):
    watched.look_until(6.0)
    watched.beats = {**watched.beats, 0: beat(0.5, steps=4, pid=100)}
    watched.look_until(7.0)
    assert not watched.killed, "the first look at these beats was at 6.25 s"
    watched.look_until(12.5, every=5.5)
    watched.look_until(17.0)
    assert not watched.killed, "it stood still until 12.5 s"
    watched.look_until(30.0, every=5.0)
    assert watched.killed


def test_the_thread_looks_until_it_is_stopped(watched):
    looks: list[float] = []
    watched.watchdog.poll = lambda: looks.append(0.0)
    watched.watchdog.start()
    wait_until(lambda: len(looks) > 1)
    watched.watchdog.stop()
    watched.watchdog._watch()  # returns at once
