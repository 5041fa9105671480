"""Real processes of the training, in an environment that holds nothing of the caller's."""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

import pytest

from tests.fabric_train.forked import find_free_port, torchrun_variables

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


class Forked:
    """Ranks of one program as copies of this process, which has imported torch already.

    A copy costs 0.1 s where a new interpreter computes for 4 s. Behaves as ``Popen`` does, with the
    output of all ranks and one exit code.
    """

    def __init__(self, arguments: tuple[str, ...], folder: Path, environs: list[dict[str, str]]):
        fork = multiprocessing.get_context("fork")
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._ranks = [
            fork.Process(target=run_program, args=(arguments, folder, environ, self._files))
            for environ in environs
        ]
        for rank in self._ranks:
            rank.start()

    def poll(self) -> int | None:
        """An exit code that is not 0, if there is one, once all have ended."""
        codes = [rank.exitcode for rank in self._ranks]
        return None if None in codes else max((code or 0 for code in codes), key=abs)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """What all have written once they have ended."""
        deadline = time.monotonic() + (timeout or DEADLINE_S)
        for rank in self._ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        if self.poll() is None:
            raise subprocess.TimeoutExpired("forked ranks", timeout or DEADLINE_S)
        out, err = (os.pread(file.fileno(), 1 << 24, 0) for file in self._files)
        return out, err

    def said(self) -> bytes:
        """What all have written to stdout so far."""
        return os.pread(self._files[0].fileno(), 1 << 24, 0)

    @property
    def returncode(self) -> int | None:
        """As ``poll``."""
        return self.poll()

    def kill(self) -> None:
        """Ends those that still run."""
        for rank in self._ranks:
            rank.kill()
            rank.join()

    terminate = kill

    def wait(self, timeout: float) -> None:
        """Waits for all."""
        self.communicate(timeout)


def run_program(
    arguments: tuple[str, ...],
    folder: Path,
    environ: dict[str, str],
    files: tuple[IO[bytes], IO[bytes]],
) -> NoReturn:
    """What ``python ARGUMENTS`` would do, in a copy of the process that has forked this one."""
    import torch

    # Stores and groups that a test has left: to free one waits for its threads, which are not here.
    gc.freeze()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    # The threads of the process that forked do not exist in this one.
    torch.set_num_threads(1)
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without pytest's own exit handlers.
    os._exit(code if isinstance(code, int) else bool(code))


class Processes:
    """Starts programs in one folder and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes] | Forked] = []

    def fork(self, *arguments: str, ranks: int = 0, **env: str) -> Forked:
        """``python`` with these arguments in copies of this process; without ``ranks`` just one,
        which belongs to no world."""
        port = find_free_port() if ranks else 0
        worlds = [torchrun_variables(rank, ranks, port, 1) for rank in range(ranks)]
        environs = [clean_environment(**world, **env) for world in worlds or [{}]]
        self._started.append(forked := Forked(arguments, self.folder, environs))
        return forked

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


def wait_to_the_end(process: subprocess.Popen[bytes] | Forked) -> tuple[int, str, str]:
    """Exit code, stdout and stderr once it has ended by itself."""
    out, err = process.communicate(timeout=DEADLINE_S)
    # Not in text mode, which turns the \r of a progress bar into \n.
    code = process.returncode
    assert code is not None
    return code, out.decode(), err.decode()


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
