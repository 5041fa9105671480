"""``again``: from the command to work, on nodes that are held with torch imported."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

from benchmarks.commands import find_launcher, find_torchrun, run
from benchmarks.measure import Goal
from benchmarks.own_script import ONE, first_line
from benchmarks.start import TRAINING, read_first_step, start_torchrun
from benchmarks.trials import Trial, compare

NAME = "again"


def agains() -> Generator[Trial]:
    """A script that imports torch, and the first step of the digits."""
    with held() as runs:
        inside = ("--in", NAME, "--runs", runs)
        yield compare(
            "launcher run t.py --in HOLD against torchrun t.py",
            partial(first_line, (*find_launcher(), "run", "t.py", *inside)),
            partial(first_line, (*find_torchrun(), "--standalone", *ONE, "t.py")),
            Goal(of="ratio", most=0.35),
        )
        yield compare(
            "launcher run jobs/digits.yaml --in HOLD against torchrun, nproc 1",
            partial(first_step, inside, runs),
            partial(start_torchrun, 1),
            Goal(of="ratio", most=0.5),
        )


@contextlib.contextmanager
def held() -> Iterator[str]:
    """The folder of the runs in which one local node is held."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        place = ("--on", "local", "--runs", runs, *ONE)
        run((*find_launcher(), "hold", "--name", NAME, *place))
        try:
            yield runs
        finally:
            run((*find_launcher(), "release", NAME, "--runs", runs))


def first_step(inside: tuple[str, ...], runs: str) -> float:
    """Seconds from the launcher's start to the end of the first optimizer step."""
    ran = run((*find_launcher(), "run", "jobs/digits.yaml", *inside, *ONE, "--", *TRAINING))
    return read_first_step(Path(runs) / "latest") - ran.started_at
