"""What the agent copies of its workers' output to its own, as pods and `srun` show it."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.engine import tee as tee_module
from launcher.agent.engine.attempts import WorkerPlace
from launcher.agent.engine.tee import Tee
from tests.waiting import wait_until


class Streams:
    """In the place of this process's two streams. Made in a test: pytest sets its own before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(self.out))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(self.err))


@pytest.fixture
def tee() -> Iterator[Tee]:
    opened = Tee(3)
    yield opened
    opened.close()


def make_worker(folder: Path, rank: int) -> WorkerPlace:
    own = folder / f"rank-{rank}"
    own.mkdir()
    return WorkerPlace(rank=rank, local_rank=rank, folder=own, heartbeat=own / "h")


def write(worker: WorkerPlace, data: bytes, name: str = "stdout") -> None:
    with (worker.folder / name).open("ab") as file:
        file.write(data)


def test_an_unfinished_line_is_kept_back_until_its_end_comes(tee, tmp_path, monkeypatch):
    streams = Streams(monkeypatch)
    first, second = make_worker(tmp_path, 0), make_worker(tmp_path, 1)
    tee.follow((first, second))
    write(first, b"one\nloss ")
    write(second, b"other\n")
    wait_until(lambda: b"other" in streams.out.getvalue())
    write(first, b"0.5\n")
    wait_until(lambda: b"0.5" in streams.out.getvalue())
    lines = streams.out.getvalue().splitlines()
    assert sorted(lines) == [b"[3/0] loss 0.5", b"[3/0] one", b"[3/1] other"]


def test_a_line_of_megabytes_stays_one_line(tee, tmp_path, monkeypatch):
    streams = Streams(monkeypatch)
    worker = make_worker(tmp_path, 0)
    write(worker, b"x" * 5_000_000 + b"\nend\n")
    tee.follow((worker,))
    tee.follow(())
    assert streams.out.getvalue() == b"[3/0] " + b"x" * 5_000_000 + b"\n[3/0] end\n"


def test_the_rest_of_an_attempt_is_copied_before_the_next_begins(tee, tmp_path, monkeypatch):
    streams = Streams(monkeypatch)
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    before, after = make_worker(tmp_path / "0", 0), make_worker(tmp_path / "1", 0)
    tee.follow((before,))
    write(before, b"no end", "stderr")
    write(after, b"later\n", "stderr")
    tee.follow((after,))
    tee.follow(())
    assert streams.err.getvalue() == b"[3/0] no end\n[3/0] later\n"


def test_a_bar_on_stderr_becomes_a_line_now_and_then_and_its_last_state_stays(
    tee, tmp_path, monkeypatch
):
    streams = Streams(monkeypatch)
    worker = make_worker(tmp_path, 0)
    monkeypatch.setattr(tee_module, "PROGRESS_S", 0.0)
    tee.follow((worker,))
    write(worker, b"\r 10%\r 20%", "stderr")
    wait_until(lambda: b"20%" in streams.err.getvalue())
    write(worker, b"\r 30%\r100%\n", "stderr")
    write(worker, b"a\rb\n")
    tee.follow(())
    assert streams.err.getvalue() == b"[3/0]  20%\n[3/0] 100%\n"
    assert streams.out.getvalue() == b"[3/0] a\rb\n"
