"""``launcher node``: finds out which node of the run this process is, agrees with the others on the
plan, lifts mpirun's binding to cores, and becomes the node's agent.

Node 0 plans the run. Once the plan is in place it writes ``RUN/starts/KEY.json``: the task (a
``NodeTask``) with which every agent is started, or the error that prevented it. ``KEY.stop`` asks
the agents of that start to stop. ``KEY`` names the start.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.contract.node_plan import NodeTask
from launcher.contract.records import read_object
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.nnodes import decide_nnodes
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.agent_files import write_agent_files
from launcher.targets.machine import read_gpus
from launcher.targets.preflight import check_here, read_secrets
from launcher.targets.shared_folder import check_meeting
from launcher.targets.starter.plan import StarterSettings, env_of_node, nodes_of
from launcher.targets.starter.starters import NodePlace, find_place, plain
from launcher.targets.starter.target import STARTS_DIR, StarterTarget
from launcher.targets.subprocesses import children

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

PLAN_LIMIT_S = 300.0
"""How long a node waits for node 0's plan: starters start nodes at about the same time, and a
network file system may take a minute to show a new file."""
STALE_LIMIT_S = 10.0
"""How long a node takes an error in that file for one that an earlier start left there."""
LOOK_S = 0.2
SET_ASIDE = "outcome-{number}.json"


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
        there = nodes_of(job, self.place)
        decide_nnodes(job, there)  # raises on every node, not on node 0 alone
        self._is_named = run_id is not None
        self.run_id = name_run(job.name, self.place, run_id)
        self._environ, self._clock = environ, clock or SystemClock()
        self.run = RunFolder(run_root.absolute() / self.run_id)
        key = "-".join(filter(None, (self.place.job, self.place.start))) or "0"
        self.ready = self.run.path / STARTS_DIR / f"{key}.json"
        """The task of all nodes, which is there when node 0's plan is in place, or the error."""
        self.stop = self.ready.with_suffix(".stop")
        self.target = StarterTarget(run_root, self.place)
        self.target.there = there
        self.notes: list[str] = unbind(environ)

    # -- node 0 makes the run ---------------------------------------------------------------------

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Around what node 0 does until its plan is in place: the others get to know an error."""
        make_folders((str(self.ready.parent),))
        # What an earlier start of the same name has left.
        self.ready.unlink(missing_ok=True)
        self.stop.write_text("")
        try:
            yield
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            shown = error if isinstance(error, LauncherError) else TargetError(what)
            with contextlib.suppress(OSError):
                record = {"error": {"what": shown.what, "hint": shown.hint}}
                write_atomically(self.ready, json.dumps(record))
            raise

    def put(self, plan: LaunchPlan, create: Callable[[], RunFolder], job_text: str) -> None:
        """Puts the plan in place; ``create`` makes the run's folder, unless the run goes on.

        ``job_text`` identifies the job: a run that goes on must have the same one.
        """
        artifact = self.target.render(plan)
        if self._goes_on(job_text):
            self.target.check(plan)
            self.run.write_plan(plan, artifact.shell())
        else:
            create()
        assert artifact.agent is not None, "these nodes need the agent"
        assert plan.agent is not None, "these nodes need the agent"
        write_agent_files(replace(artifact.agent, tasks=()))
        write_atomically(self.ready, NodeTask(node=plan.nodes[0], settings=plan.agent).to_json())

    def _goes_on(self, job_text: str) -> bool:
        """Whether the run was started before. Raises ``InputError`` for another run's id."""
        if not self.run.is_there():
            return False
        fix = f"name this one: --run-id {self.run_id}-2 (on all nodes)"
        # The same job of a scheduler starts the run again, as after a requeue.
        if not self._is_named and not self.place.scheduler:
            raise InputError(f"{self.run.path} already exists and belongs to another run", fix)
        known, path = "", self.run.path / protocol.JOB_FILE
        with contextlib.suppress(OSError):
            known = path.read_text()
        if known != job_text:
            what = f"{self.run_id} was started before with another job or other options; see {path}"
            raise InputError(what, fix)
        return True

    # -- every node joins it ----------------------------------------------------------------------

    def wait_for_plan(self) -> LaunchPlan:
        """Waits for node 0's plan.

        Raises ``InputError`` with node 0's error, ``TargetError`` if node 0 writes nothing.
        """
        began = self._clock.monotonic()
        while True:
            waited_s, reply = self._clock.monotonic() - began, read_object(self.ready)
            error = reply.get("error")
            if reply and error is None:
                return self.run.read_plan()
            if isinstance(error, dict) and waited_s > STALE_LIMIT_S:
                raise InputError(
                    f"node 0 did not start: {error.get('what')}", error.get("hint", "")
                )
            if waited_s > PLAN_LIMIT_S:
                raise TargetError(
                    f"node 0 has not written {self.ready} within {PLAN_LIMIT_S:g} s",
                    "all nodes must see the folder of the runs (--runs DIR on a shared file "
                    "system); what node 0 printed says more",
                )
            self._clock.sleep(LOOK_S)

    def tell(self, plan: LaunchPlan) -> list[str]:
        """Lines for a person about this node and, from node 0, about the run."""
        lines = list(self.notes)
        if self.place.index == 0:
            lines.append(f"run {plan.run_id}: {plan.size}; folder {plan.run_dir}")
        return lines + [f"note: {note}" for note in self.target.notes]

    def become(self, plan: LaunchPlan) -> NoReturn:
        """Replaces this process by the node's agent, which the starter's signals thus reach.

        Raises ``InputError`` if this node cannot run its part of the plan.
        """
        env = self.prepare(plan)
        # The starter's own variables stay: the agent removes them from its workers' environment.
        archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
        argv = (StarterSettings.of(plan).python, archive, str(self.ready))
        children.become(argv, cwd=plan.nodes[0].workdir or ".", env={**self._environ, **env})

    def prepare(self, plan: LaunchPlan) -> dict[str, str]:
        """Checks this node; returns the variables of its agent."""
        read_secrets(plan.nodes[0].secrets, self._environ)
        check_here(plan.nodes[0])
        gpus = read_gpus() if plan.accelerator == "cuda" else ()
        env = env_of_node(plan, self.place.index, socket.gethostname(), gpus)
        old = self.run.path / protocol.OUTCOME_FILE
        if self.place.index == 0 and old.exists():
            # Of an earlier start, and no longer true: the run goes on.
            names = (self.run.path / SET_ASIDE.format(number=n) for n in itertools.count())
            old.replace(next(path for path in names if not path.exists()))
        return {**env, protocol.STOP_FILE: str(self.stop)}


def name_run(job_name: str, place: NodePlace, given: str | None) -> str:
    """The run's id, the same on all nodes. Raises ``InputError`` if it is bad or unknown."""
    if given is not None:
        if plain(given) != given.replace("_", "-"):
            raise InputError(
                f"--run-id {given}: letters, digits, points and dashes make an id",
                f"--run-id {plain(given) or 'NAME-1'}",
            )
        return given
    if not place.job:
        raise InputError(
            f"{place.starter} gives no job id, so the nodes cannot agree on a run id",
            f"name it, new for each run: launcher node --run-id {job_name}-$(date +%s) ...",
        )
    return f"{job_name}-{place.job}"


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
