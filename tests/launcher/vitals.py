"""Vitals of nodes, for tests that care for a part of them."""

from pathlib import Path
from typing import Any

from launcher.contract.protocol import VITALS_FILE
from launcher.contract.records import dump_record
from launcher.contract.reports.vitals import GpuVitals, Vitals

GPU = GpuVitals(
    name="0", model="H200", share=0.5, memory_bytes=1, memory_limit_bytes=2, temperature_c=60
)


def vitals(**fields: Any) -> Vitals:
    """Of a machine that is half busy, unless told."""
    given = {"at": 0.0, "cpu_share": 0.5, "memory_bytes": 1, "memory_limit_bytes": 2}
    return Vitals(**{**given, **fields})


def leave_vitals(node_dir: Path, **fields: Any) -> None:
    """What an agent leaves in its node's folder, which is made where it is missing."""
    node_dir.mkdir(parents=True, exist_ok=True)
    (node_dir / VITALS_FILE).write_text(dump_record(vitals(**fields)))
