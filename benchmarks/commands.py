"""Runs the commands that are measured: the same interpreter, folder and environment for both sides.

With ``trees.py``, for what is killed, the only user of ``subprocess`` here.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.measure import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
"""Commands run here, where ``train`` and ``jobs`` are, unless a folder is given."""
TIMEOUT_S = 300.0
KILL_AFTER_S = 30.0
"""torchrun needs its SIGTERM to end its workers: at once killed, it would leave them."""
TAIL_LINES = 15
FOREIGN_PREFIXES = ("PET_", "TORCHELASTIC_", "LAUNCHER_", "LT_")
FOREIGN_NAMES = frozenset(
    [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("RUN_DIR", "CHECKPOINT_DIR"),
        "PYTHONDONTWRITEBYTECODE",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that ended with exit code 0, with its start (Unix seconds) and its duration.

    ``processor_s`` is what it and its children took of all processors.
    """

    started_at: float
    duration_s: float
    processor_s: float


def run(
    argv: Sequence[str],
    extra_env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    cwd: Path = ROOT,
    timeout_s: float | None = None,
) -> Ran:
    """Runs a command to its end, its stdout into a file where one is given.

    Raises BenchmarkError where it cannot start, fails or hangs.
    """
    env = {**measured_environment(os.environ), **(extra_env or {})}
    with tempfile.TemporaryFile() as output:
        before_s, started_at, began = _processor_s(), time.time(), time.perf_counter()
        child = start(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
        )
        code = _wait(child, timeout_s or TIMEOUT_S)
        duration_s = time.perf_counter() - began
        if code != 0:
            output.seek(0)
            raise BenchmarkError(_describe_failure(argv, code, output.read()))
    processor_s = _processor_s() - before_s
    return Ran(started_at=started_at, duration_s=duration_s, processor_s=processor_s)


def start(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A child with the ``options`` of Popen. Raises BenchmarkError where it cannot be started."""
    try:
        return subprocess.Popen(argv, **options)
    except OSError as error:
        raise BenchmarkError(f"cannot start {argv[0]}: {error.strerror}") from error


def _processor_s() -> float:
    """Of all children that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def answering(
    argv: Sequence[str], extra_env: Mapping[str, str] | None = None
) -> Iterator[Callable[[], str]]:
    """A program that stays for many samples: each call sends it a line and gives its next one.

    It ends where its stdin does. A call raises BenchmarkError where no answer comes.
    """
    env = {**measured_environment(os.environ), **(extra_env or {})}
    with tempfile.TemporaryFile() as errors:
        pipe = subprocess.PIPE
        child = start(argv, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=errors)
        assert child.stdin
        assert child.stdout
        stdin, stdout = child.stdin, child.stdout

        def ask() -> str:
            with suppress(BrokenPipeError):  # it ended: then no line comes
                stdin.write(b"\n")
                stdin.flush()
            if not select.select([stdout], [], [], TIMEOUT_S)[0]:
                raise BenchmarkError(f"{argv!r} did not answer within {TIMEOUT_S:g} s")
            line = stdout.readline()
            if not line:
                code = _wait(child, TIMEOUT_S)
                errors.seek(0)
                raise BenchmarkError(_describe_failure(argv, code, errors.read()))
            return line.decode()

        try:
            yield ask
        finally:
            with suppress(BrokenPipeError):
                stdin.close()
            # All answers have been given: what is left of it is ended.
            with suppress(BenchmarkError), stdout:
                _wait(child, KILL_AFTER_S)


def read(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """What a short command prints. Raises BenchmarkError where it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{' '.join(argv)}: {error}") from error
    if done.returncode != 0:
        raise BenchmarkError(_describe_failure(argv, done.returncode, done.stderr))
    return done.stdout.decode(errors="replace")


def measured_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of both sides: nothing of an outer run, and one thread per process.

    torchrun limits the threads only for several processes, the launcher always: without this, one
    process would train with other threads on one side than on the other.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def keep_bytecode(environ: MutableMapping[str, str]) -> None:
    """Lets this process and all that it starts write bytecode.

    Without it each start compiles this project's sources anew, while torch's and the peers'
    bytecode was written when they were installed.
    """
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def describe_command(words: Sequence[str]) -> str:
    """What one types to call ``python -m benchmarks`` with these words."""
    return shlex.join(["make", "bench", *([f"ARGS={shlex.join(words)}"] if words else [])])


def find_command(name: str, module: str) -> tuple[str, ...]:
    """What a user would type, from this interpreter's own environment; else by its module."""
    script = Path(sys.executable).with_name(name)
    return (str(script),) if script.exists() else (sys.executable, "-m", module)


def find_torchrun() -> tuple[str, ...]:
    """torch's own launcher. Raises BenchmarkError without torch."""
    if importlib.util.find_spec("torch") is None:
        raise BenchmarkError(f"{sys.executable} has no torch; fix: make setup")
    return find_command("torchrun", "torch.distributed.run")


def find_launcher() -> tuple[str, ...]:
    """This project's command line."""
    return find_command("launcher", "launcher")


def find_torchx(environ: Mapping[str, str]) -> str | None:
    """TorchX by the variable TORCHX, beside this interpreter, or on PATH; None without it."""
    beside = Path(sys.executable).with_name("torchx")
    return environ.get("TORCHX") or (str(beside) if beside.exists() else shutil.which("torchx"))


def free_port() -> int:
    """A port of loopback that nobody listens on by now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int:
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{child.args!r} did not end within {timeout_s:g} s") from None
    finally:
        if child.poll() is None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _describe_failure(argv: Sequence[str], code: int, output: bytes) -> str:
    tail = output.decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n  ".join([f"exit code {code} of: {' '.join(argv)}", *tail])
