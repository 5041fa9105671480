"""``profile``: a profile of each rank of a run that goes on."""

from __future__ import annotations

import argparse
import sys

from launcher.api.profile import take_profile
from launcher.commands.runs import find
from launcher.contract.clock import SystemClock
from launcher.contract.errors import TargetError


def profile(arguments: argparse.Namespace) -> None:
    """Prints the files that were written, and why others were not."""
    run = find(arguments)
    told = take_profile(run, SystemClock(), steps=arguments.steps, seconds=arguments.seconds)
    for rank, path in sorted(told.files.items()):
        print(f"rank {rank}: {path}")
    why = [f"rank {rank}: {said}" for rank, said in sorted(told.missing.items())]
    why += [f"node {index}: {said}" for index, said in sorted(told.silent.items())]
    if not told.files:
        raise TargetError(
            f"no rank of {run.run_id} was profiled: {'; '.join(why) or 'no worker has begun'}"
        )
    sys.stderr.write("".join(f"{line}\n" for line in why))
