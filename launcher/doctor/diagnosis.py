"""Finds out by a run of the probe whether a target can run a job."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from launcher.contract.errors import LauncherError
from launcher.doctor.finding import Finding, failed, ok
from launcher.doctor.judge import judge_nodes
from launcher.doctor.run import (
    MOUNTED_PROGRAM,
    OWN_FOLDER,
    PROGRAM,
    RUN_NAME,
    as_probe,
    judge_speed,
    judge_start,
    run_probe,
)
from launcher.follow.requests import count_nodes
from launcher.follow.target import Target
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run


def diagnose_nodes(job: JobSpec, target: Target, limit_s: float) -> Iterator[Finding]:
    """Yields findings as they are made, up to the first that rules out all later ones."""
    try:
        facts = target.facts(job)
    except LauncherError as error:
        yield failed(f"target {target.name}", "this machine", error.what, error.hint)
        return
    yield ok(f"target {target.name}", "this machine", facts.describe())
    try:
        mounts = facts.image is not None
        command = MOUNTED_PROGRAM if mounts else str(PROGRAM)
        probe = as_probe(job, command, mounts_program=mounts)
        plan = plan_run(probe, facts, run_id=new_run_id(RUN_NAME))
    except LauncherError as error:
        yield failed("plan", "job", error.what, error.hint)
        return
    with _folder_for_checkpoints(plan):
        yield from _probe_nodes(plan, target, limit_s)


def _probe_nodes(plan: LaunchPlan, target: Target, limit_s: float) -> Iterator[Finding]:
    try:
        answers = run_probe(plan, target, limit_s)
    except LauncherError as error:
        yield failed("start", count_nodes(len(plan.nodes)), error.what, error.hint)
        return
    yield from judge_start(answers, limit_s)
    yield from judge_nodes(answers.nodes)
    yield judge_speed(answers)


@contextlib.contextmanager
def _folder_for_checkpoints(plan: LaunchPlan) -> Iterator[None]:
    """Removes the folders that only the probe has made."""
    folder = Path(plan.checkpoint_dir)
    jobs_was_there = folder.parent.exists()
    try:
        yield
    finally:
        if folder.name == OWN_FOLDER:
            shutil.rmtree(folder, ignore_errors=True)
            if not jobs_was_there:
                with contextlib.suppress(OSError):
                    folder.parent.rmdir()
