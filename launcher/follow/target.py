"""The interface of a target: what following, stopping, scaling and showing a run ask of it.

Only a target's own room and the table in ``api/choose_target`` know its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from launcher.contract.errors import InputError
from launcher.contract.reasons import NodeState, Reason
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.contract.clock import Clock
    from launcher.follow.console import Console
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class NodeObservation:
    """One node at an instant.

    ``exit_code`` is as in a shell: 128 + n for signal n; None while it runs. ``detail`` is what the
    target says of a node that ended or could not start, such as "OOMKilled".
    """

    node_index: int
    incarnation: int
    state: NodeState
    exit_code: int | None = None
    out_of_memory: bool = False
    detail: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is about to."""
        return self.state in (NodeState.RUNNING, NodeState.PENDING)


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


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """Why a run is over; ``at`` is when, in seconds since the epoch, None for just now."""

    reason: Reason
    detail: str = ""
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One run in a list. ``age_s`` is counted from its submission."""

    run_id: str
    state: str
    age_s: float
    folder: str
    job: str = ""
    target: str = ""
    reason: str = ""
    nnodes: int = 0

    def to_jsonable(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


class Artifact(Protocol):
    """A plan rendered for a target."""

    def shell(self, *, embed: bool = False) -> str:
        """A script that does by hand what ``submit`` does; ``embed``: with the agent in it."""
        ...

    def shell_to_join(self) -> str:
        """Lines that start these nodes alone, where the run's files are there already."""
        ...


class Driver(Protocol):
    """Keeps one run going, a turn at a time. ``Follower`` calls it and shows the output."""

    plan: LaunchPlan
    """The plan now in force."""
    live: tuple[int, ...]
    """Indices of the nodes that are in the world now; empty where all planned ones count."""
    poll_s: float
    """Between two turns."""

    def turn(self) -> RunEnd | None:
        """Looks at the run and acts on what it finds; says how the run ended, if it has."""
        ...

    def scale(self, nodes: int) -> None:
        """Changes the number of nodes to one that the plan allows."""
        ...

    def end(self, why: RunEnd, *, asked: bool) -> None:
        """Ends what is left and brings the last output. ``asked``: a stop was asked for.

        Raises ``TargetError`` where the run cannot be ended and goes on.
        """
        ...

    def hurry(self) -> RunEnd | None:
        """A second Ctrl-C: as what the run is to end, at once; None to abandon it."""
        ...

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """The follower cannot go on. Whether nothing runs any more, so that there is an outcome.

        Raises ``TargetError`` where the run cannot be ended.
        """
        ...


class Target(ABC):
    """A place where jobs run. Methods block until done; all but the pure ones may raise
    ``TargetError``."""

    name: ClassVar[str]
    goes_on_alone: ClassVar[bool] = False
    """Whether a run needs no launcher: controllers of the target start and replace its nodes."""
    sees_other_machines: ClassVar[bool] = True
    """Whether runs that were started on another machine can be seen from this one."""
    keeps_stopped_runs: ClassVar[bool] = False
    """Whether a run can be stopped and resumed (``suspend``)."""
    own_checkpoints: ClassVar[str] = ""
    """The key of the job file for its checkpoints, if all runs of a job share them; empty where
    ``--resume RUN`` names the run to go on from."""
    tells_by_consoles: ClassVar[bool] = False
    """Whether workers write into their nodes' own output, and nowhere else."""
    sends_code: ClassVar[bool] = False
    """Whether nodes get a copy of the training code; elsewhere they use its folder itself."""

    def __init__(self) -> None:
        self.code: PackedCode | None = None
        """The training code; set before ``facts`` where the target sends it, and the job has it."""
        self.is_sending = False
        """Whether ``submit`` only brings what nodes start from: an interrupt ends that at once."""
        self.run_id = ""
        """The id of the run to come, where something was started for it already."""
        self.taken_because = ""
        """Why it was taken where nobody named it."""
        self.notes: list[str] = []
        """Lines for a person about what was done; the caller prints and removes them."""

    # -- before a run -----------------------------------------------------------------------------

    def fit(self, job: JobSpec) -> JobSpec:
        """The job with what the target decides where the job leaves it open.

        Raises ``InputError`` where it cannot have what it names.
        """
        return job

    @abstractmethod
    def facts(self, job: JobSpec) -> TargetFacts:
        """What the planner needs to know. Raises ``TargetError`` where the job cannot run."""

    def has_image(self, job: JobSpec) -> bool:
        """Whether an image may hold the job's code. Pure."""
        return True

    def facts_offline(self, job: JobSpec) -> TargetFacts | None:
        """The facts where nothing has to be asked to render a job; None elsewhere. Pure."""
        return None

    def describe(self, facts: TargetFacts) -> str:
        """Where a job runs, and on what, in words."""
        where = self.describe_place(facts)
        if facts.accelerator == "cuda":
            machines = [node.machine for node in facts.nodes if node.machine] or [facts.machine]
            return f"{where}, {sum(len(each.device_ids or ()) for each in machines)} GPUs, NCCL"
        return f"{where}, no GPU: gloo, {facts.machine.cpu_count} CPU cores"

    def describe_place(self, facts: TargetFacts) -> str:
        """Where a job runs, in words."""
        return self.name

    def own_python(self, plan: LaunchPlan) -> str:
        """The Python of this machine that runs the workers; empty where they have another. Pure."""
        return ""

    def check(self, plan: LaunchPlan) -> None:  # noqa: B027 - nothing to check is no mistake
        """Raises ``InputError`` where something that the nodes need is seen to be missing.

        Called before anything is made. ``notes`` gets what a person may not expect.
        """

    @abstractmethod
    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> Artifact:
        """The plan's nodes, or ``only`` those, as what ``submit`` would start. Pure."""

    def preview(self, plan: LaunchPlan, made_by: str, *, embed: bool = False) -> str:
        """What ``launcher render`` prints. ``made_by`` is the command that was typed. Pure.

        No launcher follows the workers' files by hand, so agents print what workers print.
        """
        return self.render(plan.with_output_on_consoles()).shell(embed=embed)

    # -- while it runs ----------------------------------------------------------------------------

    @abstractmethod
    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """Starts the nodes, after earlier incarnations of them have ended.

        Raises ``TargetError``, and then leaves nothing of this call behind.
        """

    @abstractmethod
    def observe(self, plan: LaunchPlan) -> Observation:
        """The plan's nodes as they are now. Does not wait."""

    def collect(self, plan: LaunchPlan) -> None:  # noqa: B027 - most write into the run folder
        """Brings what the nodes wrote outside the run folder into it. Idempotent."""

    @abstractmethod
    def stop(self, run_id: str, grace_s: float) -> None:
        """Ends the run's nodes, by force after ``grace_s`` seconds, and removes what is left.

        Collects what they wrote first. Idempotent, also for a run that the target does not know.
        """

    @abstractmethod
    def stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        """Ends some nodes of a run as ``stop`` does, and leaves the others alone. Idempotent."""

    @abstractmethod
    def live_runs(self) -> tuple[LiveRun, ...]:
        """All runs of which the target holds something, also those of other people."""

    def drive(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> Driver:
        """What keeps a run going, here by starting lost nodes again.

        ``show`` prints what nodes and workers have written by now.
        """
        from launcher.follow.nodes import NodeDriver

        return NodeDriver(run, plan, self, console, clock, show)

    # -- a run that no launcher here follows ------------------------------------------------------

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> RunEnd | None:
        """How the run ended, after removing what is left of it; None while it goes on."""
        from launcher.follow.nodes import find_end

        return find_end(run, plan, self)

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with the incarnations that its nodes have come to."""
        return plan

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        """Brings the run's output into its folder, in turns; with ``follow`` until the run ends."""
        return iter(())

    def bring_story(self, run: RunFolder, plan: LaunchPlan, claim: Path | None) -> None:  # noqa: B027
        """Puts the target's own story of a borrowed run into its folder.

        ``claim`` is where this machine sees the run's storage.
        """

    def check_scale(self, plan: LaunchPlan) -> None:  # noqa: B027 - most can
        """Raises ``InputError`` where the run keeps its size. Pure."""

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        """Changes the number of nodes; False where only the run's own launcher could."""
        return False

    # -- a run that is stopped and kept -----------------------------------------------------------

    def suspend(self, run_id: str) -> None:
        """Ends the nodes of a run and keeps what resumes it."""
        raise InputError(f"--keep: {run_id} is on no cluster", "leave --keep out")

    def resuming(self, plan: LaunchPlan) -> str:
        """The command that has a suspended run go on."""
        raise NotImplementedError

    def has_resumed(self, plan: LaunchPlan) -> bool:
        """Whether a suspended run was resumed."""
        return False
