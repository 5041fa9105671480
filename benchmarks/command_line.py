"""``render``, ``help``, ``answers``: whole processes of the command line, beside the peers' own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import ROOT, find_launcher, find_torchrun, find_torchx, run
from benchmarks.measure import Goal
from benchmarks.trials import Sample, Trial, compare

RENDER = ("render", "jobs/digits.yaml", "--on", "local", "--nproc-per-node", "2")
DRYRUN = ("run", "--dryrun", "--scheduler", "local_cwd", "dist.ddp", "-j", "1x2", "-m", "train")
"""TorchX's nearest: the same script on one node with two processes, printed and not run."""
NO_TORCHX = "peer not installed: pip install torchx (or name one by the variable TORCHX)"


def renders() -> Generator[Trial]:
    """``launcher render`` against ``torchx run --dryrun``; alone where TorchX is missing."""
    torchx = find_torchx(os.environ)
    yield compare(
        "launcher render against torchx run --dryrun",
        _duration_of((*find_launcher(), *RENDER)),
        _duration_of((torchx, *DRYRUN)) if torchx else None,
        Goal(of="ratio", most=0.5),
        note="" if torchx else NO_TORCHX,
    )


def helps() -> Generator[Trial]:
    """The processor time of ``launcher --help`` and ``--version`` against ``torchrun --help``."""
    for option in ("--help", "--version"):
        yield compare(
            f"launcher {option}, processor time, against torchrun --help",
            _processor_time_of((*find_launcher(), option)),
            _processor_time_of((*find_torchrun(), "--help")),
            Goal(of="seconds", most=0.06),
        )


def answers() -> Generator[Trial]:
    """What is asked of a run that has ended, and ``run`` until its first line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "x.py").touch()
        starting = (*find_launcher(), "run", "x.py", "--on", "local", "--nproc-per-node", "1")
        run(starting, cwd=folder)
        for words in (("ps", "--all"), ("status",), ("logs",)):
            yield compare(
                f"launcher {' '.join(words)}, processor time",
                _processor_time_of((*find_launcher(), *words), folder),
                goal=Goal(of="seconds", most=0.15),
            )
        yield compare(
            "launcher run x.py until its first line",
            partial(_until_first_line, starting, folder),
            goal=Goal(of="seconds", most=0.3),
        )


def _until_first_line(argv: Sequence[str], folder: Path) -> float:
    """Until the run's folder is made, right after which the first line is printed."""
    ran = run(argv, cwd=folder)
    submitted = json.loads((folder / "runs/latest/submitted.json").read_text())
    return float(submitted["at"]) - ran.started_at


def _duration_of(argv: Sequence[str]) -> Sample:
    return lambda: run(argv).duration_s


def _processor_time_of(argv: Sequence[str], folder: Path = ROOT) -> Sample:
    return lambda: run(argv, cwd=folder).processor_s
