"""Target ``starter``: nodes that somebody else starts, each of which finds its place by itself.

No launcher follows such a run. What is known of it is what its agents write into its folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import ExitCode, InputError
from launcher.contract.states import NodeState
from launcher.follow.target import NodeObservation, Observation, Target, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import MachineFacts, TargetFacts, parse_shell
from launcher.runs.folder import RunFolder, check_folder
from launcher.runs.node_outcomes import read_node_outcome
from launcher.targets.interpreter import find_torch
from launcher.targets.machine import read_gpus
from launcher.targets.preflight import check_here, read_secrets
from launcher.targets.processes import ProcessArtifact, render_processes
from launcher.targets.shared_folder import changed_at, plan_as_run
from launcher.targets.starter.agreement import last_start, request_stop
from launcher.targets.starter.plan import TARGET, StarterSettings, plan_facts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.starter.starters import NodePlace

STOP_MARGIN_S = 15.0
"""What agents may need beyond the grace: to see the request, and to write how they ended."""
LOOK_S = 0.5
LEFT_BEHIND_S = 60.0
"""How long, after the grace, a node without an outcome counts as alive when the others ended."""
SILENT_S = 60.0
"""A node whose last sign of life is older than this may have ended. Agents show one every
``ALIVE_S``, and clients of network file systems may see it up to a minute late."""
STARTED_BY = "srun --ntasks-per-node=1 launcher node train.py (or mpirun -N 1, ...)"


class StarterTarget(Target):
    """Runs that ``launcher node`` began. ``place`` is set if this process is one of the nodes."""

    name = TARGET
    traits = Traits(goes_on_alone=True, takes_shell=True)

    def __init__(
        self, run_root: Path, place: NodePlace | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__()
        self.place = place
        self._run_root = run_root
        self._clock = clock or SystemClock()

    def facts(self, job: JobSpec) -> TargetFacts:
        if self.place is None:
            raise InputError(f"--on {TARGET}: somebody else starts its nodes", STARTED_BY)
        python, torch_version = find_torch(job.local.python)
        cores = len(os.sched_getaffinity(0))
        gpus = read_gpus() if not job.is_on_cpu else ()
        alone = job.nnodes.max == 1
        facts = plan_facts(
            job,
            MachineFacts(cpu_count=cores, device_ids=gpus, loopback="lo" if alone else None),
            StarterSettings(
                python=python, starter=self.place.starter, scheduler=self.place.scheduler
            ),
            torch_version=torch_version,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
        )
        # MASTER_ADDR and the like are the starter's own: nothing to tell.
        return replace(facts, shell=parse_shell(os.environ))

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        check_here(plan.nodes[0])

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ProcessArtifact:
        """Renders node 0 unless ``only`` says others: each node is rendered on its own machine."""
        return render_processes(plan, only or (0,))

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        raise InputError(f"{plan.run_id}: somebody else starts its nodes", STARTED_BY)

    # -- what the run's folder tells ----------------------------------------------------------

    def observe(self, plan: LaunchPlan) -> Observation:
        run, current = RunFolder(Path(plan.run_dir)), self.as_run(plan).nodes
        incarnations = {node.node_index: node.incarnation for node in current}
        began = last_start(run)
        told = {
            index: read_node_outcome(run, index, n)
            for index, n in incarnations.items()
            if changed_at(run.node_dir(index, n) / protocol.OUTCOME_FILE) > began
        }
        ended = {index: n for index, n in incarnations.items() if told.get(index)}
        others = {index: n for index, n in incarnations.items() if index not in ended}
        left = find_left_behind(run, others, ended, plan.stop_grace_s)
        return Observation(
            run_id=plan.run_id,
            nodes=tuple(
                _observed(index, incarnation, told.get(index), is_over=index in left)
                for index, incarnation in incarnations.items()
            ),
        )

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        return plan_as_run(plan)

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        looked_at = float("-inf")
        while follow:
            now = self._clock.monotonic()
            if now >= looked_at + 2.0:
                looked_at = now
                if not any(node.is_alive for node in self.observe(plan).nodes):
                    return
            yield

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        if only is not None:
            raise InputError(f"{run_id}: somebody else starts and ends its nodes", STARTED_BY)
        run = RunFolder(self._run_root / run_id)
        if not run.is_there():
            return
        plan = run.read_plan()
        if not self._living(plan):
            return
        request_stop(run)
        deadline = self._clock.monotonic() + grace_s + STOP_MARGIN_S
        while (left := self._living(plan)) and self._clock.monotonic() < deadline:
            self._clock.sleep(LOOK_S)
        if left:
            own = StarterSettings.of(plan)
            job = f" (job {own.scheduler})" if own.scheduler else ""
            self.notes.append(
                f"no end reported by {', '.join(f'node {index}' for index in left)}; "
                f"what still runs ends with {own.starter}{job}"
            )

    def _living(self, plan: LaunchPlan) -> list[int]:
        return [node.node_index for node in self.observe(plan).nodes if node.is_alive]


def _observed(
    index: int, incarnation: int, told: NodeOutcome | None, *, is_over: bool
) -> NodeObservation:
    if told is not None:
        state, code, detail = NodeState.EXITED, told.exit_code, ""
    elif is_over:
        state, code, detail = NodeState.EXITED, int(ExitCode.KILLED), "it left no outcome"
    else:
        state, code, detail = NodeState.RUNNING, None, ""
    return NodeObservation(
        node_index=index, incarnation=incarnation, state=state, exit_code=code, detail=detail
    )


# -- nodes that ended without a word: only times of the file system that all share are compared ----


def find_left_behind(
    run: RunFolder, without_outcome: Mapping[int, int], ended: Mapping[int, int], grace_s: float
) -> frozenset[int]:
    """Which nodes ``without_outcome`` have ended: they are silent, and the others ended long ago.

    Both arguments give the incarnation of each node.
    """
    ends = [changed_at(run.node_dir(*node) / protocol.OUTCOME_FILE) for node in ended.items()]
    if not ends or not without_outcome or (now := _read_now(run.path)) is None:
        return frozenset()
    if now - max(ends) <= grace_s + LEFT_BEHIND_S:
        return frozenset()
    return frozenset(
        index
        for index, incarnation in without_outcome.items()
        if now - _last_sign(run.node_dir(index, incarnation)) > SILENT_S
    )


def _last_sign(node_dir: Path) -> float:
    """When the node last showed life; before its agent runs, when its folder was made."""
    alive = changed_at(node_dir / protocol.ALIVE_FILE)
    return alive if alive > float("-inf") else changed_at(node_dir)


def _read_now(folder: Path) -> float | None:
    """The file system's own time; None if this process may not write there."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime
    return None
