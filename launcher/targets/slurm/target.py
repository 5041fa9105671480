"""Target ``slurm``: jobs of a Slurm cluster, submitted and followed from a login node.

The run folder lies on a file system that all nodes see: output, liveness and requests go through
it, and the controller is asked for little.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.ending import Ending
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.waits import wait_until
from launcher.follow.requests import request_stop, write_size
from launcher.follow.target import Door, Driver, Observation, ScriptArtifact, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts, describe_ignored, parse_shell
from launcher.runs.folder import RunFolder, check_folder, make_folders
from launcher.targets.agent_archive import read_compiled_archive
from launcher.targets.interpreter import read_torch_version
from launcher.targets.preflight import check_in_code, check_there, read_secrets
from launcher.targets.shared_folder import SharedFolderTarget, ask_to_stop
from launcher.targets.slurm import client, inside
from launcher.targets.slurm.follow import (
    END_LIMIT_S,
    LOOK_S,
    SlurmDriver,
    find_end,
    is_all_over,
    observe,
)
from launcher.targets.slurm.job_starts import (
    JobStart,
    by_hand,
    find_taken,
    is_being_submitted,
    newest_starts,
    read_queue,
    read_starts,
    write_cluster,
    write_job,
)
from launcher.targets.slurm.plan import TARGET, plan_facts
from launcher.targets.slurm.script import render_script
from launcher.targets.slurm.settings import JOBS_DIR, SlurmSettings
from launcher.targets.slurm_process import SlurmProcess

if TYPE_CHECKING:
    from launcher.contract.clock import Clock
    from launcher.follow.console import Console
    from launcher.job.spec import JobSpec

STOP_MARGIN_S = 5.0
"""What agents have beyond the grace, to see the request late and to record how they end."""


class SlurmTarget(SharedFolderTarget):
    """Submits a run as one job, or as a job array, and reads what its nodes leave."""

    name = TARGET
    traits = Traits(goes_on_alone=True, sends_code=True, takes_shell=True)
    look_s = LOOK_S

    def __init__(self, run_root: Path, allocation: SlurmProcess | None = None) -> None:
        """``allocation``: the one around this process, on whose nodes a new run runs."""
        super().__init__(run_root)
        self._allocation = allocation
        if allocation is not None:
            self.there = inside.nodes_of(allocation)

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: all that a batch script needs is in the job file."""
        torch_version = None
        if self._allocation is not None:
            self.notes += inside.describe_unused(job)
        if job.slurm.python is None and not job.slurm.container:
            python, torch_version = find_own_torch()
            slurm = job.slurm.model_copy(update={"python": python})
            job = job.model_copy(update={"slurm": slurm})
        facts = plan_facts(
            job,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
            torch_version=torch_version,
            sends_code=self.code is not None,
            allocation=self._allocation,
        )
        self.notes += filter(None, (describe_ignored(os.environ),))
        return replace(facts, terminal=sys.stderr.isatty(), shell=parse_shell(os.environ))

    def has_image(self, job: JobSpec) -> bool:
        return bool(job.slurm.container)

    def check(self, plan: LaunchPlan) -> None:
        """As ``Target.check``: Slurm itself is asked whether it would take the job."""
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        if self.code is not None:
            check_in_code(self.code)
        elif plan.image is None:
            check_there(plan.nodes[0], plan.run_dir)
        settings = SlurmSettings.of(plan)
        if settings.container is not None and plan.is_hold:
            what = f"slurm.container: containers of {settings.container} are not held"
            raise InputError(what, "--set slurm.container=null")
        if settings.inside:
            return
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(render_script(plan))
            script.flush()
            try:
                client.try_script(Path(script.name))
            except client.SlurmError as error:
                if error.hint:
                    raise
                if client.NOT_NOW in error.what:
                    # Slurm says so of drained nodes too; sbatch refuses a job that never fits.
                    return
                more = f"{typed.command('doctor', 'JOB', '--on', 'slurm')} tells more"
                fix = f"{client.fix_of_refusal(error.what)}; {more}"
                raise InputError(error.what, fix) from error

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ScriptArtifact:
        """All nodes, whatever ``only`` says: one script starts each of them."""
        return ScriptArtifact(render=lambda embed: render_script(plan, embed=embed))

    # -- while it runs ----------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: all else that nodes need is made by the batch job itself."""
        run = RunFolder(Path(plan.run_dir))
        make_folders((f"{plan.run_dir}/{JOBS_DIR}",))
        (run.path / protocol.AGENT_ARCHIVE).write_bytes(read_compiled_archive())
        if self._allocation is None:
            self._submit(run)
            return
        try:
            inside.start_script(run, len(plan.nodes), self._allocation, dict(os.environ))
        except OSError as error:
            raise TargetError(f"bash: {error.strerror}", "the script needs bash on PATH") from error

    def _submit(self, run: RunFolder, elements: tuple[int, ...] = ()) -> None:
        options = (f"--array={','.join(map(str, elements))}",) if elements else ()
        script = (run.path / protocol.ARTIFACT_FILE).absolute()
        try:
            write_job(run, client.submit_script(script, *options))
        except client.SlurmError as error:
            find_taken(run, error)
            self.notes.append(f"{error.what}; but Slurm has taken the job")
        write_cluster(run)

    def observe(self, plan: LaunchPlan) -> Observation:
        run = RunFolder(Path(plan.run_dir))
        return observe(run, plan, read_queue(run))

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        settings = SlurmSettings.of(plan)
        if settings.container is not None:
            what = f"no program can be started in a container of {settings.container}"
            raise InputError(what, "a job without slurm.container")
        by_element = newest_starts(read_starts(RunFolder(Path(plan.run_dir))))
        start = by_element.get(node_index if settings.kind == "array" else None)
        queue = client.read_queue([start.job]) if start is not None and start.code is None else ()
        job = next((j.job_id for j in queue if start and j.element == start.element), None)
        if job is None:
            raise TargetError(f"node {node_index} of {plan.run_id} does not run")
        step = (
            *("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1"),
            *("--cpu-bind=none", "--mpi=none", "--unbuffered", "--quiet"),
            f"--relative={0 if settings.kind == 'array' else node_index}",
        )
        archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
        terminal, python = (*step, "--pty"), settings.python
        return Door(words=step, at_terminal=terminal, python=python, archive=archive)

    # -- end --------------------------------------------------------------------------------------

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``: asks the agents through the folder, then cancels what is left.

        Raises ``TargetError`` with the command to type if the controller does not answer.
        """
        run = RunFolder(self._run_root / run_id)
        if not run.is_there():
            # The folder was removed: only the queue still knows the run's jobs.
            try:
                client.cancel(map(str, client.find_jobs(run_id)))
            except client.SlurmError as error:
                asks = f"squeue --me --format='%F %k' has it as {client.comment_of(run_id)}"
                raise TargetError(f"STILL RUNNING: {run_id}: {error.what}", asks) from error
            return
        if is_being_submitted(run):
            request_stop(run, keep=False)
            why = "its launcher is on another machine and submits it; it was asked to stop"
            raise TargetError(f"STILL RUNNING: {run_id}: {why}", "the same command in a moment")
        self._end(run, None if only is None else frozenset(only), grace_s)

    def _end(self, run: RunFolder, only: frozenset[int] | None, grace_s: float) -> None:
        """Ends these elements, or all of the run; inside of an allocation, the run's step alone."""

        def are_over() -> bool:
            live = self._live(run, only)
            for start in live:
                ask_to_stop(run.path / JOBS_DIR / f"{start.key}.stop")
            return not live

        wait_until(are_over, grace_s + STOP_MARGIN_S if grace_s else 0)
        job = SlurmSettings.of(run.read_plan()).inside
        fix = by_hand(run, job, only)
        try:
            if left := self._queued(run, only):
                client.cancel(left)
        except client.SlurmError as error:
            raise TargetError(f"STILL RUNNING: {run.run_id}: {error.what}", fix) from error
        # Inside, the program may be there without a step: srun waits until nodes are free.
        are_gone = are_over if job else lambda: not self._queued(run, only)
        if (left or job) and not wait_until(are_gone, END_LIMIT_S, LOOK_S):
            self.notes.append(f"it is cancelled, but not gone yet: squeue --me; {fix}")

    def _live(self, run: RunFolder, only: frozenset[int] | None) -> list[JobStart]:
        """The starts of these elements, or of all, whose scripts have not recorded an end."""
        newest = newest_starts(read_starts(run)).values()
        return [s for s in newest if (only is None or s.element in only) and s.code is None]

    def _queued(self, run: RunFolder, only: frozenset[int] | None) -> list[str]:
        """Names of these elements, or ids of all jobs, or the run's step, that are in the queue."""
        if job := SlurmSettings.of(run.read_plan()).inside:
            return inside.find_step(run.run_id, job) if self._live(run, only) else []
        jobs = (job for job in read_queue(run) if not job.is_over)
        if only is None:
            return sorted({str(job.number) for job in jobs})
        return sorted(job.name for job in jobs if job.element in only)

    # -- following --------------------------------------------------------------------------------

    def drive(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> Driver:
        return SlurmDriver(run, plan, self, console, clock)

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> Ending | None:
        return find_end(run, plan, lambda: self.stop(run.run_id, 0))

    def says_end(self, run: RunFolder, plan: LaunchPlan) -> bool:
        return is_all_over(run, plan, read_starts(run))

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        """As ``Target.scale``: adds elements to the array, or ends those of the highest indices."""
        write_size(run, nodes)
        wanted = frozenset(range(nodes))
        queued = {job.element for job in read_queue(run) if not job.is_over}
        present = frozenset(index for index in queued if index is not None)
        if gone := present - wanted:
            self._end(run, gone, plan.stop_grace_s)
        if come := sorted(wanted - present):
            self._submit(run, tuple(come))
        return True


def find_own_torch() -> tuple[str, str | None]:
    """The nodes' Python if the job names none, and its torch version: this Python if it has torch,
    else PATH's, whose version is not looked up. Nodes see the same file system."""
    try:
        return sys.executable, read_torch_version(sys.executable)
    except TargetError:
        if (python := shutil.which("python3")) is None:
            what = "is not set, and there is no python3 on PATH"
            raise KeyInputError(("slurm", "python"), what, "name one") from None
        return python, None
