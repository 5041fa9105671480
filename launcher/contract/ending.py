"""Why a node or a run ended, and the outcome of a node, which its agent writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launcher.contract import protocol
from launcher.contract.causes import Cause, with_cause
from launcher.contract.records import changed_fields, parse_object, parse_record
from launcher.contract.states import RunState
from launcher.contract.worker_end import WorkerEnd, describe


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A cause and its details; ``finished_at`` is in seconds since the epoch, 0 for an end now.

    The outcomes of a node and of a run are endings too.
    """

    cause: Cause
    detail: str = ""
    finished_at: float = 0.0

    @property
    def fault(self) -> str | None:
        """Whose mistake a failure is; None for other ends."""
        return self.cause.run_end.whose if self.cause.state is RunState.FAILED else None

    def summarize(self, first: WorkerEnd | None) -> str:
        """The detail, with the worker that failed ``first`` if that is why, in one text.

        For where the worker's own record is not shown beside it.
        """
        is_why = first and (self.fault in ("user", "training") or first.cause is self.cause)
        # Details of older versions name it.
        if not first or not is_why or f"rank {first.rank}: " in self.detail:
            return self.detail
        return "; last: ".join(filter(None, (self.detail, describe(first))))

    @property
    def exit_code(self) -> int:
        """That of a node's agent, and of the launcher that followed a run."""
        return int(self.cause.exit_code)


@dataclass(frozen=True, kw_only=True)
class NodeOutcome(Ending):
    """How one incarnation of a node ended. Times are seconds since the epoch.

    The engine's process fills it; the supervisor adds the times, and the cause where the engine
    could not know it. ``first`` is the worker that failed first, ``collateral`` are the others.
    ``ended_well`` is the first worker of the last attempt that ended with exit code 0.
    """

    node_index: int
    incarnation: int
    attempts: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    first: WorkerEnd | None = None
    collateral: tuple[WorkerEnd, ...] = ()
    ended_well: WorkerEnd | None = None

    @property
    def summary(self) -> str:
        """The node's detail and first failed worker, as ``summarize`` joins them."""
        return self.summarize(self.first)

    @property
    def worker_ends(self) -> tuple[WorkerEnd, ...]:
        """All workers that ended badly in the last attempt."""
        return (*((self.first,) if self.first else ()), *self.collateral)

    def to_json(self, indent: int | None = None) -> str:
        """The text of the file; ``protocol.NODE_OUTCOME_SCHEMA`` is its version."""
        version = {"schema": protocol.NODE_OUTCOME_SCHEMA}
        data = {**version, **vars(self), "exit_code": self.exit_code}
        return json.dumps(data, indent=indent, default=changed_fields)

    def to_short_json(self, limit_bytes: int) -> str:
        """The same, cut to what a pod's status holds: collateral failures are cut first."""
        shorter = replace(self, collateral=())
        for outcome in (self, shorter):
            if len(text := outcome.to_json()) <= limit_bytes:
                return text
        return replace(shorter, first=None, detail=self.summary[:500]).to_json()


def parse_node_outcome(text: str) -> NodeOutcome | None:
    """Reads what ``to_json`` wrote; None for anything else."""
    with contextlib.suppress(ValueError):
        if (data := parse_object(text)).get("schema") in (2, protocol.NODE_OUTCOME_SCHEMA):
            return parse_record(NodeOutcome, with_cause(data))
    return None
