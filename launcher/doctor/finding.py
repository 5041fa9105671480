"""One row of a diagnosis, and the table of them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.follow.table import render_columns


class Status(enum.Enum):
    """How a check ended; only ``FAILED`` makes a diagnosis fail."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found in one place; ``fix`` is what to type, for all but ``OK``."""

    check: str
    where: str
    status: Status
    found: str
    fix: str = ""

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {**asdict(self), "status": self.status.value}


def ok(check: str, where: str, found: str) -> Finding:
    """The check found what it should."""
    return Finding(check=check, where=where, status=Status.OK, found=found)


def warning(check: str, where: str, found: str, fix: str) -> Finding:
    """The job will run, but slower or less safely; or the check could not look."""
    return Finding(check=check, where=where, status=Status.WARNING, found=found, fix=fix)


def failed(check: str, where: str, found: str, fix: str) -> Finding:
    """The job would fail."""
    return Finding(check=check, where=where, status=Status.FAILED, found=found, fix=fix)


def is_fit(findings: Sequence[Finding]) -> bool:
    """Whether none of them failed."""
    return all(finding.status is not Status.FAILED for finding in findings)


def render_findings(findings: Sequence[Finding]) -> str:
    """A line for each finding, and below it the fix where there is one."""
    lines = render_columns([(f.status.value, f.check, f.where, f.found) for f in findings])
    indent = " " * (max((len(f.status.value) for f in findings), default=0) + 2)
    return "".join(
        f"{line}\n" + (f"{indent}fix: {finding.fix}\n" if finding.fix else "")
        for finding, line in zip(findings, lines, strict=True)
    )
