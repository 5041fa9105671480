"""The outcome of a node, which its agent writes and the launcher reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from launcher.contract import protocol
from launcher.contract.reasons import Reason
from launcher.contract.worker_end import WorkerEnd


@dataclass(frozen=True, kw_only=True)
class NodeOutcome:
    """One incarnation's ``outcome.json``. Times are seconds since the epoch."""

    node_index: int
    incarnation: int
    reason: Reason
    exit_code: int
    detail: str
    attempts: int
    restarts: Mapping[str, int]
    started_at: float
    finished_at: float
    first: WorkerEnd | None
    collateral: tuple[WorkerEnd, ...]

    @property
    def ends(self) -> tuple[WorkerEnd, ...]:
        """All workers that ended badly in the last attempt."""
        return (*((self.first,) if self.first else ()), *self.collateral)

    def to_json(self, indent: int | None = None) -> str:
        """The text of the file; ``protocol.NODE_OUTCOME_SCHEMA`` is its version."""
        data = {"schema": protocol.NODE_OUTCOME_SCHEMA, **asdict(self), "reason": self.reason.value}
        return json.dumps(data, indent=indent)
