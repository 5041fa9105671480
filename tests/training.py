"""Real processes of the training, in an environment that holds nothing of the caller's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FOREIGN = ("LAUNCHER_", "PET_", "TORCHELASTIC_", "LT_", "RUN_DIR", "CHECKPOINT_DIR")
WORLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DEADLINE_S = 240


def clean_environment(**more: str) -> dict[str, str]:
    """The caller's environment without any job's variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in WORLD
    }
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    return {**kept, **fixed, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **more}


class Processes:
    """Starts programs in one folder and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """``python`` with these arguments, its output captured."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=clean_environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def start_torchrun(self, workers: int, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """One node's torchrun; ``arguments`` are its further options and the program."""
        return self.start(
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={workers}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            *arguments,
            **env,
        )

    def end(self) -> None:
        """SIGTERM first: torchrun takes its workers along only if it is asked."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()


def wait_to_the_end(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr once it has ended by itself."""
    out, err = process.communicate(timeout=DEADLINE_S)
    # Not in text mode, which turns the \r of a progress bar into \n.
    return process.returncode, out.decode(), err.decode()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Until the condition holds; fails if the process ends before, or never gets there."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Programs of this test, run in its folder."""
    group = Processes(tmp_path)
    yield group
    group.end()


@pytest.fixture
def finish() -> Callable[[subprocess.Popen[bytes]], tuple[int, str, str]]:
    """Waits for a program's end: exit code, stdout, stderr."""
    return wait_to_the_end


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object], subprocess.Popen[bytes]], None]:
    """Waits for a condition while a program runs."""
    return wait_for


@pytest.fixture
def clean() -> dict[str, str]:
    """An environment without any job's variables, in which this project can be imported."""
    return clean_environment()
