"""Heartbeats while they are written: no reader ever takes a half-written one for silence.

The clocks are far ahead: a machine that has been up for longer than ``hang_max_s`` is where a
beat that was read as "never" would be the longest silence of all.
"""

import multiprocessing
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.monitoring.look import Looker
from launcher.agent.engine.monitoring.watchdog import PROOF_S, Reading, Watchdog
from launcher.agent.ledger import AgentLedger
from launcher.agent.worker import heartbeat
from launcher.agent.worker.heartbeat import (
    HeartbeatWriter,
    WorkerBeat,
    create_heartbeat,
    read_heartbeat,
)
from launcher.contract.node_plan import AgentSettings

UPTIME_S = 1e7
RACE_S = 1.5
CONTEXT = multiprocessing.get_context("fork")


class FarClock:
    """The machine's clock, of a machine that was booted months ago."""

    def monotonic(self) -> float:
        return time.monotonic() + UPTIME_S

    def wall(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


def write_without_a_pause(path: Path, goes_on: Callable[[], bool]) -> None:
    writer = HeartbeatWriter(path)
    while goes_on():
        writer.step()


@pytest.fixture
def far_clock(monkeypatch: pytest.MonkeyPatch) -> FarClock:
    clock = FarClock()
    monkeypatch.setattr(heartbeat, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def race(far_clock: FarClock) -> Iterator[Callable[[Path, str], None]]:
    """Starts a writer in a thread or in a process, and ends it."""
    over = threading.Event()
    writers: list[threading.Thread | multiprocessing.process.BaseProcess] = []

    def start(path: Path, kind: str) -> None:
        writer: threading.Thread | multiprocessing.process.BaseProcess
        if kind == "thread":
            args = (path, lambda: not over.is_set())
            writer = threading.Thread(target=write_without_a_pause, args=args)
        else:
            args = (path, lambda: True)
            writer = CONTEXT.Process(target=write_without_a_pause, args=args, daemon=True)
        writer.start()
        writers.append(writer)

    yield start
    over.set()
    for writer in writers:
        if not isinstance(writer, threading.Thread):
            writer.kill()
        writer.join(10)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_every_beat_that_is_read_was_written_whole(tmp_path, race, kind):
    path = tmp_path / "heartbeat"
    create_heartbeat(path)
    race(path, kind)
    end, last, reads = time.monotonic() + RACE_S, 0.0, 0
    while time.monotonic() < end:
        beat = read_heartbeat(path)
        if beat is None:
            assert not last, "a beat that was there is not read any more"
            continue
        reads += 1
        assert beat.at >= max(last, UPTIME_S)
        assert beat.number == beat.steps + 1
        last = beat.at
    assert reads > 50


def test_a_worker_that_beats_all_the_time_is_never_ended_as_hung(tmp_path, race, far_clock):
    attempts = Attempts(tmp_path / "node", tmp_path, tmp_path)
    (worker,) = attempts.begin({0: 0})
    race(worker.heartbeat, "process")
    ledger = AgentLedger(tmp_path / "ledger", far_clock, node_index=0, incarnation=0)
    looker = Looker(attempts, far_clock)
    watchdog = Watchdog(attempts, AgentSettings(), ledger, looker, far_clock)
    end = time.monotonic() + RACE_S
    while time.monotonic() < end:
        watchdog.poll()
    assert '"first-step"' in (tmp_path / "ledger").read_text()
    assert '"hang"' not in (tmp_path / "ledger").read_text()
    beat = read_heartbeat(worker.heartbeat)
    os.kill(beat.pid, 0)


def test_a_writer_that_dies_within_a_beat_leaves_the_one_before(tmp_path):
    path = tmp_path / "heartbeat"
    create_heartbeat(path)
    writer = HeartbeatWriter(path)
    seen = []
    for _ in range(2):
        writer.step()
        seen.append(read_heartbeat(path))
    before, latest = seen
    assert before is not None
    assert latest is not None
    whole = path.read_bytes()
    slot = len(whole) // 2 * (latest.number % 2)
    for torn in range(len(whole) // 2):
        at = slot + torn
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_heartbeat(path) == before


def test_a_file_that_holds_no_whole_beat_is_read_as_none(tmp_path):
    path = tmp_path / "heartbeat"
    assert read_heartbeat(path) is None
    for content in (b"", bytes(10), bytes(1000), b"LNBEAT1\0" + bytes(100)):
        path.write_bytes(content)
        assert read_heartbeat(path) is None


def beat(number: int, rank: int = 0) -> WorkerBeat:
    return WorkerBeat(pid=1 + rank, number=number, steps=number, at=1.0)


@pytest.mark.parametrize(
    ("second", "proves"),
    [
        (Reading(at=PROOF_S, beats={0: beat(7), 1: beat(3, 1)}, cpu_s=10.5), True),
        (Reading(at=PROOF_S / 2, beats={0: beat(7), 1: beat(3, 1)}, cpu_s=10.0), False),
        (Reading(at=60.0, beats={0: beat(7), 1: beat(4, 1)}, cpu_s=10.0), False),
    ],
)
def test_only_two_looks_at_the_same_beats_prove_a_hang(second, proves):
    first = Reading(at=0.0, beats={0: beat(7), 1: beat(3, 1)}, cpu_s=10.0)
    assert second.share_since(first) == (0.25 if proves else None)
