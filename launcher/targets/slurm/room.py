"""The room of target ``slurm``: sbatch's options that people type most."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract.errors import InputError
from launcher.targets.room import Room, words_given

if TYPE_CHECKING:
    from launcher.doctor.finding import Finding
    from launcher.follow.target import Target
    from launcher.job.spec import JobSpec

OVERRIDES = ("partition", "account", "qos", "time", "constraint", "reservation")
"""Options that stand for ``slurm.KEY`` of the job file."""


class SlurmRoom(Room):
    """Jobs of a Slurm cluster."""

    name = "slurm"
    opens = "launcher.targets.slurm.target:SlurmTarget"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.slurm.inside import find_allocation
        from launcher.targets.slurm.target import SlurmTarget

        # With --on slurm a job of its own is meant, also inside of another.
        new = arguments is not None and "set" in arguments and arguments.on is None
        return SlurmTarget(run_root, allocation=find_allocation(os.environ) if new else None)

    def is_here(self, environ: Mapping[str, str]) -> bool:
        from launcher.targets.slurm.inside import find_allocation

        return find_allocation(environ) is not None

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        from launcher.targets.slurm.doctor import diagnose_slurm

        run_root = Path(getattr(arguments, "runs", "runs"))
        asks = bool(getattr(arguments, "test_job", False))
        return diagnose_slurm(job, folder, run_root, limit_s, ask_nodes=asks)

    def add_job_options(self, parser: ArgumentParser) -> None:
        for key in OVERRIDES:
            metavar = "LIMIT" if key == "time" else "NAME"
            parser.add_argument(f"--{key}", metavar=metavar, help=f"Slurm: override slurm.{key}")

    def add_doctor_options(self, parser: ArgumentParser) -> None:
        asks = "Slurm: run a job of a minute on one compute node, which tells what it sees and has"
        parser.add_argument("--test-job", action="store_true", help=asks)

    def sample_job(self, arguments: Namespace) -> str:
        return "name: doctor\ncommand: [doctor]\n" if arguments.on == self.name else ""

    def read_settings(self, arguments: Namespace) -> dict[str, str]:
        given = {k: value for k in OVERRIDES if (value := getattr(arguments, k, None)) is not None}
        if given and arguments.on != self.name:
            key, value = next(iter(given.items()))
            raise InputError(f"--{key} {value} without --on {self.name}", f"--on {self.name}")
        if getattr(arguments, "test_job", False) and arguments.on != self.name:
            raise InputError(f"--test-job without --on {self.name}", f"--on {self.name}")
        return given

    def words_of_job(self, arguments: Namespace) -> list[str]:
        return words_given(arguments, OVERRIDES)
