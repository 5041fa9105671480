"""Logs of pods: each line once, wherever a connection breaks."""

import threading

import pytest

from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.pods.logs import Cursor, Fate, LogFollower, LogSource
from tests.launcher.fake_cluster import Fault, ended, pod
from tests.launcher.targets.kubernetes.conftest import labelled, stamp


class Reader:
    """A follower of one pod's log, and what it wrote."""

    def __init__(self, cluster: Cluster, restarts: int = 0) -> None:
        self.lines: list[str] = []
        self.fate = Fate(is_over=False, was_restarted=False)
        source = LogSource(pod="d-0", uid="d-0", container="node", restarts=restarts)
        self._lock = threading.Lock()
        self.follower = LogFollower(cluster, source, lambda: self.fate, self._write)

    def _write(self, line: bytes) -> None:
        with self._lock:
            self.lines.append(line.decode().rstrip("\n"))


@pytest.mark.parametrize("after", [0, 10, 27, 28, 60, 90])
def test_a_log_that_is_cut_anywhere_loses_and_repeats_no_line(after, server, cluster):
    server.put("pods", pod("d-0", labelled()))
    # Three at one instant, two in one second, one in the next: all that a new request may repeat.
    lines = [(stamp(1), "a"), (stamp(1), "a"), (stamp(1), "b"), ("2026-01-01T00:00:01.61Z", "c"),
             ("2026-01-01T00:00:01.7Z", "d"), (stamp(2), "e")]  # fmt: skip
    server.log("d-0", *lines, ended=True)
    server.faults += [Fault("GET", "/log", 0, after=after), Fault("GET", "/log", 0, after=45)]
    reader = Reader(cluster)
    reader.follower.start()
    server.until(lambda: not server.faults)
    reader.fate = Fate(is_over=True, was_restarted=False)
    reader.follower.finish(20)
    assert reader.lines == ["a", "a", "b", "c", "d", "e"]


def test_a_restarted_container_leaves_the_rest_of_its_log(server, cluster):
    server.put("pods", pod("d-0", labelled()))
    server.log("d-0", (stamp(1), "one"))
    reader = Reader(cluster)
    reader.follower.start()
    server.until(lambda: reader.lines == ["one"])
    server.log("d-0", (stamp(2), "last words"), ended=True)
    server.put("pods", pod("d-0", labelled(), restarts=1, last=ended(1)))
    server.log("d-0", (stamp(3), "again"), restart=1)
    reader.fate = Fate(is_over=True, was_restarted=True)
    reader.follower.finish(20)
    assert reader.lines == ["one", "last words"]
    assert any(q.get("previous") == "true" for q in server.asked("GET", "/log"))


def test_a_log_that_is_gone_with_its_pod_ends_the_reading(server, cluster):
    reader = Reader(cluster)
    reader.fate = Fate(is_over=True, was_restarted=False)
    reader.follower.start()
    reader.follower.finish(20)
    assert not reader.follower._thread.is_alive()
    assert reader.lines == []


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-01-01T00:00:01.1Z", "2026-01-01T00:00:01.12Z"),
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:01.000000001Z"),
        ("2026-01-01T01:00:01.5+01:00", "2026-01-01T00:00:01.6Z"),
    ],
)
def test_timestamps_are_ordered_whatever_their_digits(earlier, later):
    cursor = Cursor()
    assert cursor.accept(f"{later} x".encode()) == b"x"
    assert cursor.accept(f"{earlier} y".encode()) is None
    assert cursor.accept(b"2026-99-99T99:99:99+02:00 no time") is None
