"""How a run ended, and which of its workers failed: the records of ``outcome.json``. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from launcher.contract import typed
from launcher.contract.reasons import FAULT_OF_REASON, Reason, RunState
from launcher.contract.worker_end import COLLATERAL

REPR_CHARACTERS = 200
"""Of an exception, in what a Python shell shows of a failure unasked."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RankFailure:
    """One worker that failed.

    ``failed_at`` is seconds since the epoch by the launcher's clock, for ordering only; ``host`` is
    the machine where target ``hosts`` ran it, ``clock_offset_s`` how far its clock is ahead.
    ``cause`` and ``attempt`` are those of ``WorkerEnd``.
    """

    node_index: int
    rank: int
    local_rank: int
    exit_code: int
    exception: str
    failed_at: float
    log: str
    log_tail: tuple[str, ...]
    cause: str = "exit"
    attempt: int = 0
    host: str = ""
    clock_offset_s: float = 0.0

    def __repr__(self) -> str:
        return f"<RankFailure {self._line}>"

    @property
    def _line(self) -> str:
        host = f" ({self.host})" if self.host else ""
        what = self.exception.partition("\n")[0][:REPR_CHARACTERS]
        return f"rank {self.rank} on node {self.node_index}{host}: {what}"

    @property
    def is_collateral(self) -> bool:
        """Whether its exception only names another worker, or its own agent ended it."""
        return self.cause == "terminated" or bool(COLLATERAL.search(self.exception))


@dataclass(frozen=True, kw_only=True, repr=False)
class FailureReport:
    """The first cause and the workers that fell with it; ``console_tail`` where no worker spoke."""

    first: RankFailure | None
    collateral: tuple[RankFailure, ...]
    console_tail: tuple[str, ...]

    def __repr__(self) -> str:
        if self.first is None:
            return "<FailureReport without a worker's error>"
        more = f"; {len(self.collateral)} more fell with it" if self.collateral else ""
        return f"<FailureReport {self.first._line}{more}>"

    def __str__(self) -> str:
        from launcher.runs.summary import render_failure

        return textwrap.dedent("\n".join(render_failure(self, reason="")))

    @property
    def ranks(self) -> tuple[RankFailure, ...]:
        """All workers that failed, the first one first."""
        return (*((self.first,) if self.first else ()), *self.collateral)

    @property
    def clock_offsets_s(self) -> dict[str, float]:
        """How far the clocks of the failed workers' hosts are ahead of the launcher's."""
        return {one.host: one.clock_offset_s for one in self.ranks if one.host}

    def with_log_commands(self, run_id: str) -> FailureReport:
        """With the command that shows each worker's log in place of its path."""
        command = typed.command("logs", run_id, "--rank")
        named = [replace(one, log=f"{command} {one.rank}") for one in self.ranks]
        return replace(self, first=next(iter(named), None), collateral=tuple(named[1:]))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, as ``outcome.json`` tells it. Times are seconds since the Unix epoch."""

    run_id: str
    job: str
    target: str
    state: str
    reason: str
    exit_code: int
    detail: str
    attempts: int
    started_at: float
    finished_at: float
    duration_s: float
    metrics: Mapping[str, object]
    failure: FailureReport | None
    checkpoint_dir: str
    torch_version: str | None
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts of workers by cause, over all nodes: a lost node counts once on each of the others.
    Empty under plain torchrun."""

    @property
    def fault(self) -> str | None:
        """Whose mistake a failed run is; None for others."""
        fault = FAULT_OF_REASON[Reason(self.reason)]
        return fault.value if fault and self.state == RunState.FAILED.value else None
