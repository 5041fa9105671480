"""The agent's part of the run's ledger: a failed write never stops the training. Standard library
only."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.clock import Clock


class AgentLedger:
    """Appends events to the agent's part. A failed write never stops the training."""

    def __init__(self, path: Path, clock: Clock, *, node_index: int, incarnation: int) -> None:
        self._path, self._clock = path, clock
        self._fixed = {
            "schema": protocol.LEDGER_SCHEMA,
            "source": "agent",
            "node_index": node_index,
            "incarnation": incarnation,
        }
        self._torn = ""

    def write(self, event: str, *, attempt: int | None = None, **values: object) -> None:
        """Appends one event; a line is one write, so that processes may share the file."""
        now = {"at": self._clock.wall(), "monotonic_s": self._clock.monotonic()}
        line = json.dumps({**self._fixed, "attempt": attempt, "event": event, **now, **values})
        try:
            # Without its parents: a run folder that was removed must stay removed.
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"{self._torn}{line}\n")
            self._torn = ""
        except OSError:
            # Half a line may be there: the next one starts on a new line.
            self._torn = "\n"


def ledger_path(run_dir: Path, node_index: int, incarnation: int) -> Path:
    """The file of one incarnation's agent."""
    name = protocol.AGENT_LEDGER.format(node_index=node_index, incarnation=incarnation)
    return run_dir / protocol.LEDGER_DIR / name
