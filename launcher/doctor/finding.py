"""One row of a diagnosis, and the table of them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


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
    """A check that found what it should."""
    return Finding(check=check, where=where, status=Status.OK, found=found)


def warning(check: str, where: str, found: str, fix: str) -> Finding:
    """Something that works, but worse than it could."""
    return Finding(check=check, where=where, status=Status.WARNING, found=found, fix=fix)


def failed(check: str, where: str, found: str, fix: str) -> Finding:
    """Something that a job would fail by."""
    return Finding(check=check, where=where, status=Status.FAILED, found=found, fix=fix)


def render_findings(findings: Iterable[Finding]) -> str:
    """A line for each finding, and beneath it the fix where there is one."""
    rows = [(f, (f.status.value, f.check, f.where)) for f in findings]
    widths = [max((len(cells[i]) for _, cells in rows), default=0) for i in range(3)]
    lines = []
    for finding, cells in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{padded}  {finding.found}".rstrip())
        if finding.fix:
            lines.append(f"{'':>{widths[0] + 2}}fix: {finding.fix}")
    return "".join(f"{line}\n" for line in lines)
