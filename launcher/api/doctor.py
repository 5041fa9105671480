"""Finds out before a job is run whether its target is fit for it. Every probe has a deadline."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from launcher.api.choose_target import room_of
from launcher.doctor.finding import Finding, Status
from launcher.job.spec import JobSpec


def diagnose(
    job: JobSpec, target_name: str, limit_s: float, arguments: Namespace | None = None
) -> Iterator[Finding]:
    """Findings in the order in which they are made; ends with the first that ends all.

    ``limit_s`` bounds the run of the probe in all nodes; ``arguments`` are the command line's.
    Leaves nothing behind. Raises ``InputError`` for no such target, or no machines.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-doctor-") as folder:
        yield from room_of(target_name).diagnose(job, Path(folder), limit_s, arguments)


def is_fit(findings: list[Finding]) -> bool:
    """Whether none of them failed."""
    return all(finding.status is not Status.FAILED for finding in findings)
