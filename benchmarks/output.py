"""``output``: 50 MB of lines from each of two ranks into one file, beside plain torchrun."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, find_launcher, find_torchrun, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.peers.printing import LINE_BYTES
from benchmarks.trials import Trial, compare

SCRIPT = ROOT / "benchmarks" / "peers" / "printing.py"
RANKS = 2
BYTES = 50_000_000
JOB = f"name: printing\nnproc_per_node: {RANKS}\ncommand: [{SCRIPT}, '{BYTES}']\n"
GOAL = Goal(of="ratio", most=1.5)


def outputs() -> Generator[Trial]:
    """One row for each engine."""
    for engine in ("torchrun", "agent"):
        what = f"{RANKS} x {BYTES // 1_000_000} MB of lines > log, engine {engine}"
        yield compare(what, partial(by_launcher, engine), by_torchrun, GOAL)


def by_launcher(engine: str) -> float:
    """Seconds of the whole command; every line must have come, each rank's in order."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        options = ("--on", "local", "--runs", str(folder / "runs"), "--set", f"engine={engine}")
        with (folder / "log").open("w+b") as log:
            argv = (*find_launcher(), "run", str(folder / "job.yaml"), *options)
            ran = run(argv, stdout=log)
            log.seek(0)
            check_lines(log.read())
    return ran.duration_s


def by_torchrun() -> float:
    """The same by torchrun, whose workers write into the file themselves."""
    script = (str(SCRIPT), str(BYTES))
    with tempfile.TemporaryFile() as log:
        argv = (*find_torchrun(), "--standalone", f"--nproc-per-node={RANKS}", *script)
        return run(argv, stdout=log).duration_s


def check_lines(log: bytes) -> None:
    """Raises BenchmarkError where a line is missing, torn or out of order."""
    lines = log.splitlines()
    for rank in range(RANKS):
        prefix = f"[0/{rank}] ".encode()
        own = [line[len(prefix) : len(prefix) + 7] for line in lines if line.startswith(prefix)]
        if own != [b"%07d" % number for number in range(BYTES // LINE_BYTES)]:
            raise BenchmarkError(f"rank {rank}'s lines are not all there, or not in order")
