"""The interface of a target: facts, submit, observe, logs, stop. Nothing else knows a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from launcher.contract.reasons import NodeState
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class NodeObservation:
    """One node at an instant.

    ``exit_code`` is a shell's: 128 + n for signal n, None while it runs. ``detail`` is the
    target's own word on a node that ended or could not start ("OOMKilled", an engine's error).
    """

    node_index: int
    incarnation: int
    state: NodeState
    exit_code: int | None = None
    out_of_memory: bool = False
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All nodes of a run at an instant, ordered by index."""

    run_id: str
    nodes: tuple[NodeObservation, ...]


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run of which the target still holds something; ``run_dir`` is its absolute folder."""

    run_id: str
    run_dir: str
    running_nodes: int


class Artifact(Protocol):
    """A plan rendered for a target."""

    def shell(self, *, embed: bool = False) -> str:
        """A script that does by hand what ``submit`` does; ``embed``: with the agent in it."""
        ...

    def shell_to_join(self) -> str:
        """Lines that start these nodes alone, where the run's files are there already."""
        ...


class Target(Protocol):
    """A place where jobs run. Methods block until done unless they say otherwise."""

    name: str
    notes: list[str]
    """What a person should know of what was done; whoever tells it takes it out."""

    def facts(self, job: JobSpec) -> TargetFacts:
        """What the planner needs to know. Raises ``TargetError`` where the job cannot run."""
        ...

    def check(self, plan: LaunchPlan) -> None:
        """Raises ``InputError`` for what the nodes need and can be seen to be missing.

        Called before anything is made; what only a node can see is found at the start.
        """
        ...

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> Artifact:
        """The plan's nodes, or ``only`` those, as what ``submit`` would start. Pure."""
        ...

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """Starts the nodes; an earlier incarnation of the same node is dead first.

        Raises ``TargetError``, leaving nothing of this call behind.
        """
        ...

    def observe(self, plan: LaunchPlan) -> Observation:
        """The plan's nodes as they are now. Does not wait."""
        ...

    def collect(self, plan: LaunchPlan) -> None:
        """Brings what the nodes wrote outside the run folder into it. Idempotent."""
        ...

    def stop(self, run_id: str, grace_s: float) -> None:
        """Ends the run's nodes, by force after ``grace_s`` seconds, and removes all that is left.

        What they wrote is collected first. Idempotent; a run that the target does not know is no
        error.
        """
        ...

    def stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        """Ends some nodes of a run as ``stop`` does, and leaves the others alone. Idempotent."""
        ...

    def live_runs(self) -> tuple[LiveRun, ...]:
        """All runs of which the target holds something, whoever started them."""
        ...
