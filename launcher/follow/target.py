"""The interface of a target: what following, stopping, scaling and showing a run ask of it.

Only a target's own room and the table in ``api/choose_target`` know its name.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

from launcher.contract.causes import NodeState
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending, is_out_of_memory
from launcher.contract.errors import InputError, TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import NodesThere
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.contract.reports.look import LookRequest
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
        """Whether the node runs, or is about to."""
        return self.state in (NodeState.RUNNING, NodeState.PENDING)

    @property
    def code(self) -> int:
        """Its exit code; 0 for a node that has none."""
        return self.exit_code or 0

    def with_outcome(self, run: RunFolder) -> NodeObservation:
        """The observation of a node that has ended, completed by the outcome of its agent."""
        outcome = (
            None if self.is_alive else run.read_node_outcome(self.node_index, self.incarnation)
        )
        if outcome is None:
            return self
        if self.state is NodeState.MISSING:
            # It has ended, and another call, or somebody else, has removed it.
            return replace(self, state=NodeState.EXITED, exit_code=outcome.exit_code)
        # An engine reports any kill for memory in a container's life.
        codes = [end.exit_code for end in outcome.worker_ends]
        is_oom = is_out_of_memory(codes, oom_killed=self.out_of_memory)
        return replace(self, out_of_memory=is_oom)


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
class ListedRun:
    """One run in a list. ``age_s`` is counted from its submission."""

    run_id: str
    state: str
    age_s: float
    folder: str
    job: str = ""
    target: str = ""
    cause: str = ""
    nnodes: int = 0
    size_bytes: int | None = None
    """Of its folder, where that was asked for."""

    def to_jsonable(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


class Artifact(Protocol):
    """A plan rendered for a target."""

    def shell(self, *, embed: bool = False) -> str:
        """A script that does what ``submit`` does; with ``embed`` it contains the agent."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScriptArtifact(Artifact):
    """A plan of which only the script is needed; ``render`` makes it, and takes ``embed``."""

    render: Callable[[bool], str]

    def shell(self, *, embed: bool = False) -> str:
        return self.render(embed)


class Driver(Protocol):
    """Keeps one run going, a turn at a time. ``Follower`` calls it and shows the output."""

    plan: LaunchPlan
    """The plan now in force."""
    live: tuple[int, ...]
    """Indices of the nodes that are in the world now; empty if all planned nodes count."""

    def turn(self) -> Ending | None:
        """Looks at the run and acts on what it finds; says how the run ended, if it has."""
        ...

    def scale(self, nodes: int) -> None:
        """Changes the number of nodes to one that the plan allows. Raises ``LauncherError``."""
        ...

    def end(self, why: Ending, *, stop_requested: bool) -> None:
        """Ends what is left and brings the last output. ``stop_requested``: by a person.

        Raises ``TargetError`` if the run cannot be ended and goes on.
        """
        ...

    def abandon(self, error: BaseException, *, submitted: bool) -> bool:
        """Handles an error of the follower. Returns whether nothing of the run runs any more.

        An interrupt, as by a second Ctrl-C, ends the run at once. Raises ``TargetError`` if the run
        cannot be ended.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Door:
    """How a program is run in a node from this machine, with standard input and output.

    ``words`` come before the program, and ``at_terminal`` before one that needs a terminal.
    ``python`` runs the agent's ``archive`` there. ``by_shell``: a shell of the node parses the
    program's words.
    """

    words: tuple[str, ...]
    at_terminal: tuple[str, ...]
    python: str
    archive: str
    by_shell: bool = False

    def command(self, argv: tuple[str, ...], *, terminal: bool = False) -> tuple[str, ...]:
        """The command on this machine that runs ``argv`` in the node."""
        before = self.at_terminal if terminal else self.words
        return (*before, *((shlex.join(argv),) if self.by_shell else argv))


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What holds for all runs on a target."""

    goes_on_alone: bool = False
    """Whether a run needs no launcher: controllers of the target start and replace its nodes."""
    sees_other_machines: bool = True
    """Whether runs that were started on another machine can be seen from this one."""
    own_checkpoints: str = ""
    """The key of the job file for its checkpoints, if all runs of a job share them; empty if
    ``--resume RUN`` names the run to resume."""
    workers_on_consoles: bool = False
    """Whether workers write into their nodes' own output, and nowhere else."""
    sends_code: bool = False
    """Whether nodes get a copy of the training code; elsewhere they use its folder itself."""
    takes_shell: bool = False
    """Whether workers get the variables of the shell that starts them."""
    held_by: str = "launcher.targets.held.target:HeldTarget"
    """The target of runs in a hold, as ``MODULE:CLASS``. This one is for nodes that see the run
    folders of this machine."""
    plans_offline: bool = False
    """Whether the job file has all that a plan needs, so that the target is not asked."""


SUSPENDED = "suspended"
"""The state of a run whose object is kept and has no nodes, whoever suspended it."""


class Suspension(Protocol):
    """A run that can be stopped and kept, and resumed later by the target's own tools."""

    def end(self, notes: list[str], *, keep: bool) -> None:
        """Ends the run's nodes; with ``keep``, keeps what resumes it. Adds lines to ``notes``."""
        ...

    def render_resuming(self) -> str:
        """The command that resumes the suspended run."""
        ...

    def is_suspended(self) -> bool | None:
        """Whether the run is kept without nodes; None if nothing is kept, or it is not known."""
        ...


class Target(ABC):
    """A place where jobs run. Methods block until done; all but the pure ones may raise
    ``TargetError``."""

    name: str
    traits: Traits = Traits()

    def __init__(self) -> None:
        self.code: PackedCode | None = None
        """The training code. Set before ``facts`` if the target sends code and the job has some."""
        self.is_sending = False
        """Whether ``submit`` sends and no node has started: an interrupt then ends it at once."""
        self.there: NodesThere | None = None
        """The nodes that are there before the run is planned; None if the job says how many."""
        self.clock: Clock = SystemClock()
        """It measures how long others are silent; who follows a run sets its own."""
        self.notes: list[str] = []
        """Lines for a person about what was done; the caller prints and removes them."""

    # -- before a run -----------------------------------------------------------------------------

    @abstractmethod
    def facts(self, job: JobSpec) -> TargetFacts:
        """What the planner needs to know. Raises ``TargetError`` if the job cannot run."""

    def has_image(self, job: JobSpec) -> bool:
        """Whether an image may hold the job's code. Pure."""
        return True

    def check(self, plan: LaunchPlan) -> None:  # noqa: B027 - nothing to check is no mistake
        """Raises ``InputError`` if the nodes lack something that this machine can see.

        It is called before anything is made, and adds what may surprise a person to ``notes``.
        """

    @abstractmethod
    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> Artifact:
        """What ``submit`` would start for the plan's nodes, or for ``only`` those. Pure."""

    def preview(self, plan: LaunchPlan, made_by: str, *, embed: bool = False) -> str:
        """What ``launcher render`` prints. ``made_by`` is the command that was typed. Pure.

        No launcher will follow the workers' files, so agents print what workers print.
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

    def observe_reachable(self, plan: LaunchPlan) -> tuple[Observation, TargetError | None]:
        """As ``observe``, but for a person: also returns the error of a part of the target that did
        not answer. The nodes there count as missing."""
        return self.observe(plan), None

    def collect(self, plan: LaunchPlan) -> None:  # noqa: B027 - most write into the run folder
        """Brings what the nodes wrote outside the run folder into it. Idempotent."""

    @abstractmethod
    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """Ends the run's nodes, by force after ``grace_s`` seconds, and removes what is left.

        ``only``: these nodes alone; the others go on. Collects what they wrote first. Idempotent,
        also for a run that the target does not know.
        """

    def live_runs(self) -> tuple[LiveRun, ...]:
        """All runs of which the target holds something, also those of other people.

        Empty if runs on this target go on without a launcher, or are asked for one by one.
        """
        return ()

    def drive(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> Driver:
        """What keeps a run going; by default it starts lost nodes again.

        ``show`` prints what nodes and workers have written by now.
        """
        from launcher.follow.nodes import NodeDriver

        return NodeDriver(run, plan, self, console, clock, show)

    def tell_closed(self) -> str:
        """Why no node of a run can be started here any more; empty where one can."""
        return ""

    # -- a run that no launcher here follows ------------------------------------------------------

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> Ending | None:
        """How the run ended, after removing what is left of it; None while it goes on."""
        from launcher.follow.nodes import find_end

        return find_end(run, plan, self)

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with the present incarnation of each node."""
        return plan

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        """Brings the run's output into its folder, in turns; with ``follow`` until the run ends."""
        return iter(())

    def look_at_workers(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        request: LookRequest,
        limit_s: float,
        clock: Clock,
    ) -> Mapping[int, str]:
        """Has all nodes look at their workers, and brings what they saw into the run's folder.

        Returns, by node index, why a node did not.
        """
        from launcher.follow.look import ask_nodes

        return ask_nodes(run, request, limit_s, clock)

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        """How to run programs in a running node. Raises ``InputError`` if the target cannot.

        Raises ``TargetError`` while the node has not started.
        """
        raise InputError(f"no program can be started in nodes of {self.name}", "another --on")

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        """Changes the number of nodes. Returns False if only the run's own launcher could."""
        return False

    def suspension(self, plan: LaunchPlan) -> Suspension | None:
        """What stops the run and keeps it; None if a stopped run is over."""
        return None
