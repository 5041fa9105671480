"""A node's attempts, real workers that answer as a training does, and a py-spy that is played."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.agent.engine.attempts import Attempts, WorkerPlace
from launcher.agent.worker import start

Start = Callable[..., subprocess.Popen[bytes]]

WORKER = """
import faulthandler, signal, sys, time
from pathlib import Path
from launcher.agent.worker.heartbeat import HeartbeatWriter
def hangs(stacks):
    print("hangs", flush=True)
    time.sleep(600)
writer, stacks = HeartbeatWriter(Path(sys.argv[1])), open(sys.argv[2], "a")
writer.step()
"""
ANSWERS = "faulthandler.register(int(sys.argv[3]), stacks)"
"""What makes a worker tell its stacks, as its start does."""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    node_dir, scratch = tmp_path / "nodes/0/0", tmp_path / "scratch"
    scratch.mkdir()
    return Attempts(node_dir, tmp_path, scratch)


@pytest.fixture
def start_worker() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start_one(place: WorkerPlace, before: str = ANSWERS) -> subprocess.Popen[bytes]:
        """A worker that has made a step, and hangs."""
        script = f"{WORKER}{before}\nhangs(stacks)"
        argv = (sys.executable, "-c", script, str(place.heartbeat), str(place.stacks))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        process = subprocess.Popen(
            (*argv, str(int(start.STACKS_SIGNAL))), stdout=subprocess.PIPE, env=environment
        )
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def worker(attempts: Attempts, start_worker: Start) -> subprocess.Popen[bytes]:
    (place,) = attempts.begin({0: 0})
    return start_worker(place, "")


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a program of this text in the place of py-spy; its arguments go into the file."""
    program, asked = tmp_path / "bin/py-spy", tmp_path / "asked"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def play(text: str) -> Path:
        program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n{text}\n')
        program.chmod(0o755)
        return asked

    return play
