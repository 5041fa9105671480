"""``launcher node``: finds out which node of the run this process is, lifts mpirun's binding to
cores, and becomes its agent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import LauncherError, TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import decide_nnodes
from launcher.targets import children
from launcher.targets.agent_files import write_agent_files
from launcher.targets.machine import read_gpus
from launcher.targets.preflight import check_here, read_secrets
from launcher.targets.shared_folder import check_meeting
from launcher.targets.starter.agreement import (
    StartFiles,
    check_same_job,
    find_files,
    name_run,
    set_outcome_aside,
)
from launcher.targets.starter.plan import StarterSettings, env_of_node, nodes_of
from launcher.targets.starter.starters import NodePlace, find_place
from launcher.targets.starter.target import StarterTarget

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder


Planned = tuple[LaunchPlan, Callable[[], "RunFolder"]]
Make = Callable[["JobSpec", StarterTarget], Planned]
"""Plans a job on the target; also returns the function that makes the run's folder."""


class StartedNode:
    """One process of a start, from its environment to the agent that it becomes."""

    def __init__(
        self,
        job: JobSpec,
        run_root: Path,
        environ: Mapping[str, str],
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises ``InputError`` if this process was not started as one of the job's nodes."""
        self.place: NodePlace = find_place(environ)
        check_meeting(job)
        self._job, there = job, nodes_of(job, self.place)
        decide_nnodes(job, there)  # raises on every node, not on node 0 alone
        self._is_named = run_id is not None
        self.run_id = name_run(job.name, self.place, run_id)
        self._environ, self._clock = environ, clock or SystemClock()
        self.files: StartFiles = find_files(run_root, self.run_id, self.place)
        self._target = StarterTarget(run_root, self.place)
        self._target.there = there
        self.notes: list[str] = unbind(environ)

    def join(self, make: Make, job_text: str) -> LaunchPlan:
        """Node 0 makes the run, the others wait for that; returns the plan of all nodes.

        ``job_text`` identifies the job: a run that goes on must have the same one.
        """
        if self.place.index:
            return self.files.wait_for_plan(self._clock)
        self.files.begin()
        try:
            plan = self._make(make, job_text)
        except LauncherError as error:
            self.files.tell_error(error)
            raise
        except BaseException as error:
            self.files.tell_error(TargetError(f"{type(error).__name__}: {error}"))
            raise
        self.files.tell(plan)
        return plan

    def _make(self, make: Make, job_text: str) -> LaunchPlan:
        run = self.files.run
        goes_on = check_same_job(run, job_text, self.place, is_named=self._is_named)
        plan, create = make(self._job, self._target)
        if goes_on:
            self._target.check(plan)
            run.write_plan(plan, self._target.render(plan).shell())
        else:
            create()
        if agent := self._target.render(plan).agent:
            write_agent_files(replace(agent, tasks=()))
        return plan

    def tell(self, plan: LaunchPlan) -> list[str]:
        """Lines for a person about this node and, from node 0, about the run."""
        lines = list(self.notes)
        if self.place.index == 0:
            lines.append(f"run {plan.run_id}: {plan.size}; folder {plan.run_dir}")
        return lines + [f"note: {note}" for note in self._target.notes]

    def become(self, plan: LaunchPlan) -> NoReturn:
        """Replaces this process by the node's agent, which the starter's signals thus reach.

        Raises ``InputError`` if this node cannot run its part of the plan.
        """
        env = self.prepare(plan)
        # The starter's own variables stay: the agent removes them from its workers' environment.
        archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
        argv = (StarterSettings.of(plan).python, archive, str(self.files.ready))
        children.become(argv, cwd=plan.nodes[0].workdir or ".", env={**self._environ, **env})

    def prepare(self, plan: LaunchPlan) -> dict[str, str]:
        """Checks this node; returns the variables of its agent."""
        read_secrets(plan.nodes[0].secrets, self._environ)
        check_here(plan.nodes[0])
        gpus = read_gpus() if plan.accelerator == "cuda" else ()
        env = env_of_node(plan, self.place.index, socket.gethostname(), gpus)
        if self.place.index == 0:
            set_outcome_aside(self.files.run)
        return {**env, protocol.STOP_FILE: str(self.files.stop)}


def unbind(environ: Mapping[str, str]) -> list[str]:
    """Lifts Open MPI's binding of this process to some cores; returns a line that says so.

    Open MPI may bind a node's only process to one core, and the workers would inherit that.
    """
    # Open MPI sets this variable in a process that it has bound.
    if "OMPI_MCA_orte_bound_at_launch" not in environ:
        return []
    before = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    after = len(os.sched_getaffinity(0))
    if after == before:
        return []
    return [f"mpirun bound this node to {before} of its cores; the workers get all {after}"]
