"""What the engine's process tells the supervisor when it ends. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
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

    def write(self, path: Path) -> None:
        """Replaces the file; on a full disk only the first of the workers' ends is kept."""
        data = {**vars(self), "reason": self.reason.value}
        ends = [asdict(end) for end in self.ends]
        texts = [json.dumps({**data, "ends": some}) for some in (ends, ends[:1], [])]
        write_atomically(path, *texts)


def read_agent_report(path: Path) -> AgentReport | None:
    """None where the agent died before it could say anything."""
    try:
        data = json.loads(path.read_text())
        ends = tuple(WorkerEnd(**end) for end in data.pop("ends"))
        return AgentReport(**{**data, "reason": Reason(data["reason"]), "ends": ends})
    except (OSError, ValueError, TypeError, KeyError):
        return None
