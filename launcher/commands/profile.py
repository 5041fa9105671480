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
    profiles = take_profile(run, SystemClock(), steps=arguments.steps, seconds=arguments.seconds)
    for rank, path in sorted(profiles.files.items()):
        print(f"rank {rank}: {path}")
    why = [f"rank {rank}: {reason}" for rank, reason in sorted(profiles.missing.items())]
    why += [f"node {index}: {reason}" for index, reason in sorted(profiles.silent.items())]
    if not profiles.files:
        raise TargetError(
            f"no rank of {run.run_id} was profiled: {'; '.join(why) or 'no worker has begun'}"
        )
    sys.stderr.write("".join(f"{line}\n" for line in why))
