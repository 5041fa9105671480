"""The room of target ``slurm``: sbatch's options that people type most."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.contract.errors import InputError
from launcher.targets.room import GivenOptions, Note, Room, words_given

if TYPE_CHECKING:
    from launcher.doctor.finding import Finding
    from launcher.follow.target import Target
    from launcher.job.spec import JobSpec

OVERRIDES = ("partition", "account", "qos", "time", "constraint", "reservation")
"""Options that stand for ``slurm.KEY`` of the job file."""


class SlurmRoom(Room):
    """Jobs of a Slurm cluster."""

    name = "slurm"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.slurm.inside import find_allocation
        from launcher.targets.slurm.target import SlurmTarget

        # --on slurm asks for a job of its own, also inside an allocation.
        new = arguments is not None and "set" in arguments and arguments.on is None
        return SlurmTarget(run_root, allocation=find_allocation(os.environ) if new else None)

    def is_here(self, environ: Mapping[str, str], note: Note) -> bool:
        from launcher.targets.slurm.inside import find_allocation

        return find_allocation(environ, note) is not None

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        from launcher.targets.slurm.doctor import diagnose_slurm

        run_root = Path(getattr(arguments, "runs", "runs"))
        asks = bool(getattr(arguments, "test_job", False))
        return diagnose_slurm(job, folder, run_root, limit_s, ask_nodes=asks)

    def add_options(self, parser: ArgumentParser, of: Literal["run", "job", "doctor"]) -> None:
        if of == "run":
            return
        for key in OVERRIDES:
            metavar = "LIMIT" if key == "time" else "NAME"
            parser.add_argument(f"--{key}", metavar=metavar, help=f"Slurm: override slurm.{key}")
        if of == "doctor":
            asks = "Slurm: run the probe on one node, which tells what it sees and has"
            parser.add_argument("--test-job", action="store_true", help=asks)

    def read_options(self, arguments: Namespace) -> GivenOptions:
        if "set" not in arguments:
            return GivenOptions()
        is_here = getattr(arguments, "on", None) == self.name
        given = words_given(arguments, (*OVERRIDES, "test_job"))
        if given and not is_here:
            raise InputError(f"{' '.join(given)} without --on {self.name}", f"--on {self.name}")
        settings = {k: value for k in OVERRIDES if (value := getattr(arguments, k, None))}
        sample = "name: doctor\ncommand: [doctor]\n"
        return GivenOptions(settings=settings, sample_job=(lambda: sample) if is_here else None)
