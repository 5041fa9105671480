"""What the engine's process tells the supervisor when it ends. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from launcher.contract.reasons import Reason
from launcher.contract.worker_end import WorkerEnd


@dataclass(kw_only=True)
class AgentReport:
    """How one start of the agent ended, as it tells the supervisor."""

    reason: Reason
    detail: str = ""
    attempts: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    ends: tuple[WorkerEnd, ...] = ()

    def write(self, file: int) -> None:
        """Writes it into a descriptor."""
        ends = [asdict(end) for end in self.ends]
        data = {**vars(self), "reason": self.reason.value, "ends": ends}
        with open(file, "w", closefd=False) as text:
            json.dump(data, text)


def read_agent_report(file: int) -> AgentReport | None:
    """None where the agent died before it could say anything. Closes the descriptor."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        with open(file) as text:
            data = json.load(text)
        ends = tuple(WorkerEnd(**end) for end in data.pop("ends"))
        return AgentReport(**{**data, "reason": Reason(data["reason"]), "ends": ends})
    except (OSError, ValueError, TypeError, KeyError):
        return None
