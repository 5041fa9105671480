"""Runs whose nodes meet through a shared folder, as their addresses are not known before; which
jobs cannot."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.causes import Cause, NodeState
from launcher.contract.errors import ExitCode, InputError, KeyInputError, TargetError
from launcher.contract.node_plan import ROSTER
from launcher.follow.loop import fold
from launcher.follow.target import NodeObservation, Observation, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nodes import absolute, plan_incarnation
from launcher.plan.target_facts import RUN_ID, Folders, NodeFacts, TargetFacts
from launcher.runs.folder import RunFolder

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

MEET_DIR = "meet"
"""In the run folder: where nodes that serve the rendezvous store say how they are reached."""
PLACEHOLDER_PORT = 29400
"""Only a placeholder in the plan: nodes take any free port, and publish it in ``MEET_DIR``."""


def check_meeting(job: JobSpec) -> None:
    """Raises ``InputError`` for a job that needs addresses before its nodes start."""
    if not job.uses_agent:
        raise InputError(
            "engine: torchrun, but these nodes learn each other's addresses when they start, and "
            "torchrun must be told before",
            f"remove engine: torchrun, and {protocol.ENGINE} from the environment",
        )
    if job.rdzv.backend not in (None, ROSTER):
        raise KeyInputError(
            ("rdzv", "backend"),
            f"found {job.rdzv.backend}; addresses are not known before the nodes start",
            "leave it out",
        )


def folders_of(job: JobSpec, run_root: str, cwd: str, *, sends_code: bool) -> Folders:
    """The folders of nodes that see this machine's, at the same paths in containers too."""
    run, given = f"{run_root}/{RUN_ID}", job.checkpoint_dir
    return Folders(
        run=run,
        checkpoints=absolute(given, cwd) if given else f"{run}/{protocol.CHECKPOINTS_DIR}",
        cwd=cwd,
        code=f"{run}/{protocol.CODE_DIR}" if sends_code else "",
        in_container=True,
    )


def let_meet(facts: TargetFacts, count: int, folders: Folders | None = None) -> TargetFacts:
    """The facts with ``count`` nodes like their ``machine`` that meet in the run's folder."""
    assert facts.agent is not None, "these nodes need the agent"
    # Names for the plan only: nodes find each other through the folder.
    of_several = replace(facts.machine, loopback=None, most_processes=None)
    machines = [replace(of_several, address=f"node-{index}") for index in range(count)]
    return replace(
        facts,
        machine=machines[0],
        nodes=tuple(NodeFacts(name=m.address, machine=m, folders=folders) for m in machines),
        agent=replace(facts.agent, meet_dir=f"{facts.run_root}/{RUN_ID}/{MEET_DIR}"),
    )


class SharedFolderTarget(Target):
    """Runs that go on without a launcher, and whose nodes write into the run's folder."""

    look_s: float
    """Seconds between two looks at a run whose output is shown."""

    def __init__(self, run_root: Path) -> None:
        super().__init__()
        self._run_root = run_root

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """As ``Target.as_run``: each start of an agent takes the next incarnation."""
        newest = dict(RunFolder(Path(plan.run_dir)).incarnations())
        nodes = (plan_incarnation(node, newest.get(node.node_index, 0)) for node in plan.nodes)
        return replace(plan, nodes=tuple(nodes))

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        """As ``Target.bring_output``: the output is there; records the run's end."""
        next_look_at = float("-inf")
        while follow and run.read_outcome() is None:
            if time.monotonic() >= next_look_at or self.says_end(run, plan):
                next_look_at = time.monotonic() + self.look_s
                with contextlib.suppress(TargetError):
                    if fold(run, self, time.time()) is not None:
                        return
            yield

    def says_end(self, run: RunFolder, plan: LaunchPlan) -> bool:
        """Whether the folder alone says that the run has ended."""
        return False


def observe_folder(
    run: RunFolder,
    plan: LaunchPlan,
    look: Callable[[int], tuple[NodeState, str]],
    began: float = float("-inf"),
) -> Observation:
    """Each node by the outcome that its agent has left since ``began``, else by ``look``.

    ``look`` gives a node's state and details; of one that waits to be started they count.
    """
    newest = dict(run.incarnations())

    def observe(index: int) -> NodeObservation:
        incarnation, (state, detail) = newest.get(index, 0), look(index)
        code = int(ExitCode.KILLED) if state is NodeState.EXITED else None
        is_told = changed_at(run.node_dir(index, incarnation) / protocol.OUTCOME_FILE) > began
        outcome = run.read_node_outcome(index, incarnation) if is_told else None
        if outcome is not None and state is not NodeState.PENDING:
            state, code, detail = NodeState.EXITED, outcome.exit_code, outcome.summary
        return NodeObservation(
            node_index=index, incarnation=incarnation, state=state, exit_code=code, detail=detail
        )

    nodes = tuple(observe(node.node_index) for node in plan.nodes)
    return Observation(run_id=plan.run_id, nodes=nodes)


def find_silent(run: RunFolder, limit_s: float) -> dict[int, float]:
    """The nodes whose agents have shown no life for ``limit_s``, and for how many seconds.

    Before its agent runs, a node's folder is its sign. Only times of the file system that all share
    are compared, as the clocks of machines differ; empty if this process may not write there.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=run.path) as probe:
        now, silent = os.fstat(probe.fileno()).st_mtime, {}
        for index, incarnation in dict(run.incarnations()).items():
            folder = run.node_dir(index, incarnation)
            alive = changed_at(folder / protocol.ALIVE_FILE)
            silent[index] = now - (alive if alive > float("-inf") else changed_at(folder))
        return {index: seconds for index, seconds in silent.items() if seconds > limit_s}
    return {}


def ask_to_stop(path: Path) -> None:
    """Asks the agents whose ``STOP_FILE`` this is to stop; an earlier reason stays.

    The file is there, empty, before they are, and is written in place: nodes may see a new file of
    a network file system a minute late. On a full disk this does nothing.
    """
    with contextlib.suppress(OSError):
        if path.read_text().strip():
            return
    with contextlib.suppress(OSError):
        path.write_text(f"{Cause.STOP_REQUESTED.value}\n")


def changed_at(path: Path) -> float:
    """When the file server saw a file or folder change; -inf where there is none.

    The path is opened, since clients of network file systems then ask the server.
    """
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
    return float("-inf")
