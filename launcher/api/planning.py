"""From a job to the plan of a new run: where it runs, and which code it takes along."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launcher.api.choose_target import Choice, choose_target, open_target
from launcher.code.place import find_code
from launcher.code.record import PackedCode, read_code, write_code
from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.follow.loop import create_run
from launcher.follow.target import Target
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run
from launcher.runs.folder import RunFolder, find_run, list_runs


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned and not yet started. ``reading`` is the code, where the job has it."""

    choice: Choice
    job: JobSpec
    plan: LaunchPlan
    reading: Future[PackedCode] | None

    def create(self) -> RunFolder:
        """Makes the run's folder, with the job and its code. Raises ``InputError``."""
        target = self.choice.target
        code = self._read_code(target)
        run = create_run(self.plan, target)
        (run.path / protocol.JOB_FILE).write_text(self.job.model_dump_json(indent=2) + "\n")
        if code is not None:
            earlier = [one for one in list_runs(run.path.parent) if one.run_id != run.run_id]
            write_code(run.path, code, earlier[-1].path if earlier else None)
        return run

    def _read_code(self, target: Target) -> PackedCode | None:
        try:
            code = self.reading.result() if self.reading else None
        except InputError as error:
            if target.sends_code:
                raise
            first = error.what.partition("\n")[0].removesuffix("; the largest files:")
            target.notes.append(f"the run folder will not hold the code: {first}")
            return None
        if code is not None and target.sends_code:
            target.notes += code.notes
        return code


def plan_job(
    job: JobSpec,
    run_root: Path,
    *,
    on: str | None = None,
    opened: Target | None = None,
    extra_args: tuple[str, ...] = (),
    detached: bool = False,
    preview: bool = False,
) -> PlannedRun:
    """Decides where a job runs and plans a new run there.

    ``on`` names the target and ``opened`` is that target, where it is open already. ``preview``:
    a target that need not be asked anything to render a job is not, and nothing is left to chance.
    Raises ``InputError`` and ``TargetError``.
    """
    place = find_code(job.command, job.code, job.workdir, Path.cwd())
    reading = _in_background(lambda: read_code(place, run_root)) if place else None
    if opened and opened.sends_code and reading:
        opened.code = reading.result()
    facts = opened.facts_offline(job) if opened and preview else None
    if opened and facts:
        choice, run_id = Choice(target=opened, facts=facts, why=""), job.name
    else:
        open_ = (lambda name, root: opened) if opened else open_target
        choice = choose_target(job, on, run_root, open_)
        run_id = new_run_id(job.name, os.urandom(3))
    plan = plan_run(
        job,
        choice.facts,
        run_id=run_id,
        extra_args=extra_args,
        detached=detached,
        place=place,
        code_hash=choice.target.code.hash if choice.target.code else "",
    )
    if place and place.note and plan.code:
        choice.target.notes.append(place.note)
    return PlannedRun(choice=choice, job=job, plan=plan, reading=reading)


def resume_job(job: JobSpec, run_root: Path, earlier: str, target: Target | None) -> JobSpec:
    """The job with the checkpoints of an earlier run. Raises ``InputError``."""
    if target and target.own_checkpoints:
        what = f"on {target.name.capitalize()} a job goes on from its own checkpoints"
        raise InputError(
            f"--resume {earlier}: {what}",
            f"leave it out; {target.own_checkpoints} says where they are",
        )
    plan = find_run(run_root, earlier).read_plan()
    return job.model_copy(update={"checkpoint_dir": plan.checkpoint_dir})


def _in_background(work: Callable[[], PackedCode]) -> Future[PackedCode]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="code")
    reading = pool.submit(work)
    pool.shutdown(wait=False)
    return reading
