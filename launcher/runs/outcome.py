"""How a run ended, and which of its workers failed: the records of ``outcome.json``. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from launcher.contract import typed
from launcher.contract.ending import Ending, WorkerEnd
from launcher.runs.heals import Heal


@dataclass(frozen=True, kw_only=True, repr=False)
class FailureReport:
    """The first cause and the workers that fell with it; without these, ``console_tail``."""

    first: WorkerEnd | None
    collateral: tuple[WorkerEnd, ...]
    console_tail: tuple[str, ...]

    def __repr__(self) -> str:
        if self.first is None:
            return "<FailureReport without a worker's error>"
        more = f"; {len(self.collateral)} more failed after it" if self.collateral else ""
        return f"<FailureReport {self.first.headline}{more}>"

    def __str__(self) -> str:
        from launcher.runs.summary import render_failure

        return textwrap.dedent("\n".join(render_failure(self, cause="")))

    @property
    def ranks(self) -> tuple[WorkerEnd, ...]:
        """All workers that failed, the first one first."""
        return (*((self.first,) if self.first else ()), *self.collateral)

    @property
    def clock_offsets_s(self) -> dict[str, float]:
        """How far the clocks of the failed workers' hosts are ahead of the launcher's."""
        return {end.host: end.clock_offset_s for end in self.ranks if end.host}

    def with_log_commands(self, run_id: str) -> FailureReport:
        """With the command that shows each worker's log in place of its path."""
        command = typed.command("logs", run_id, "--rank")
        named = [replace(end, log=f"{command} {end.rank}") for end in self.ranks]
        return replace(self, first=next(iter(named), None), collateral=tuple(named[1:]))


@dataclass(frozen=True, kw_only=True)
class Outcome(Ending):
    """How a run ended, as in ``outcome.json``. Times are seconds since the Unix epoch.

    Its driver sets the cause and the detail, and ``finished_at`` if the run ended earlier.
    ``follow.loop.write_outcome`` adds the rest.
    """

    run_id: str = ""
    job: str = ""
    target: str = ""
    attempts: int = 1
    started_at: float = 0.0
    metrics: Mapping[str, object] = field(default_factory=dict)
    failure: FailureReport | None = None
    checkpoint_dir: str = ""
    torch_version: str | None = None
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts of workers by cause, over all nodes: a lost node counts once on each of the others.
    Empty under plain torchrun."""
    verdict: str = ""
    """The first cause of a failed run, how sure it is, where, and the section of the runbook."""
    heals: tuple[Heal, ...] = ()
    """When the workers went on without a restart after a loss, or with a newcomer."""
    replaced_nodes: int = 0
    """How often a lost node was started again while the others went on or waited."""

    @property
    def state(self) -> str:
        """``succeeded``, ``failed`` or ``stopped``."""
        return self.cause.state.value

    @property
    def duration_s(self) -> float:
        """From the submission to the end; 0 if the clocks put the end first."""
        return max(0.0, round(self.finished_at - self.started_at, 3))

    @property
    def clock_offsets_s(self) -> Mapping[str, float]:
        """How far the clocks of the failed workers' hosts are ahead of the launcher's."""
        return self.failure.clock_offsets_s if self.failure else {}

    def to_jsonable(self) -> dict[str, object]:
        """Plain data, with what follows from the cause and the times."""
        derived = {"state": self.state, "exit_code": self.exit_code, "duration_s": self.duration_s}
        return {**asdict(self), **derived}
