"""``render`` and ``help``: whole processes of the command line, beside the peers' own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from benchmarks.commands import find_launcher, find_torchrun, find_torchx, run
from benchmarks.measure import Goal, Row, Sample, interleave

RENDER = ("render", "jobs/digits.yaml", "--on", "local", "--nproc-per-node", "2")
DRYRUN = ("run", "--dryrun", "--scheduler", "local_cwd", "dist.ddp", "-j", "1x2", "-m", "train")
"""TorchX's nearest: the same script on one node with two processes, printed and not run."""
NO_TORCHX = "peer not installed: pip install torchx (or name one by the variable TORCHX)"


def measure_render(repetitions: int) -> Iterator[Row]:
    """``launcher render`` against ``torchx run --dryrun``; alone where TorchX is missing."""
    torchx = find_torchx(os.environ)
    sides = [_duration_of((*find_launcher(), *RENDER))]
    if torchx:
        sides.append(_duration_of((torchx, *DRYRUN)))
    measured = interleave(repetitions, *sides)
    yield Row(
        benchmark="render",
        what="launcher render against torchx run --dryrun",
        ours=measured[0],
        theirs=measured[1] if torchx else None,
        goal=Goal(of="ratio", most=0.5),
        note="" if torchx else NO_TORCHX,
    )


def measure_help(repetitions: int) -> Iterator[Row]:
    """``launcher --help`` against ``torchrun --help``."""
    ours, theirs = interleave(
        repetitions,
        _duration_of((*find_launcher(), "--help")),
        _duration_of((*find_torchrun(), "--help")),
    )
    yield Row(
        benchmark="help",
        what="launcher --help against torchrun --help",
        ours=ours,
        theirs=theirs,
        goal=Goal(of="seconds", most=0.25),
    )


def _duration_of(argv: Sequence[str]) -> Sample:
    return lambda: run(argv).duration_s
