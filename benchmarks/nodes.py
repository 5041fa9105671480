"""``nodes``: many nodes on one machine, from the command until all their workers run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, find_launcher, find_torchrun, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Trial, compare

NODES = 16
SCRIPTS = {
    # One write, as the lines of several processes share a file.
    "x.py": "import os, time; os.write(1, f'{time.time()}\\n'.encode())\n",
    "t.py": "import os, time, torch; os.write(1, f'{time.time()}\\n'.encode())\n",
}
SEVERAL = ROOT / "benchmarks" / "peers" / "several_torchruns.py"
GOAL = Goal(of="ratio", most=0.4)


def nodes() -> Generator[Trial]:
    """A script that imports nothing, one that imports torch, and that one forked."""
    for script, goal, *options in (
        ("x.py", GOAL),
        # Each worker is a new interpreter that imports torch, on both sides.
        ("t.py", None),
        ("t.py", GOAL, "--set", "start=fork"),
    ):
        many = ("--nnodes", str(NODES), "--nproc-per-node", "1")
        ours = (*find_launcher(), "run", script, "--on", "local", *many, *options)
        theirs = (sys.executable, str(SEVERAL), str(NODES), *find_torchrun(), script)
        yield compare(
            f"{NODES} nodes, launcher run {' '.join((script, *options))} against "
            f"{NODES} x torchrun {script}",
            partial(last_line, ours),
            partial(last_line, theirs),
            goal,
        )


def last_line(argv: Sequence[str]) -> float:
    """Seconds from the command's start until the last of the workers has printed its line.

    Each prints the time, behind its rank where a launcher puts that before a line.
    """
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        for script, text in SCRIPTS.items():
            Path(name, script).write_text(text)
        ran = run(argv, stdout=output, cwd=Path(name))
        output.seek(0)
        lines = output.read().decode().splitlines()
    if len(lines) != NODES:
        raise BenchmarkError(f"{argv[0]} printed {len(lines)} lines, not {NODES}")
    return max(float(line.rpartition(" ")[2]) for line in lines) - ran.started_at
