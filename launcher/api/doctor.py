"""Finds out before a job is run whether its target is fit for it. Every probe has a deadline."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launcher.api.open import KUBERNETES, describe, open_target
from launcher.contract.errors import LauncherError
from launcher.doctor.finding import Finding, Status, failed, ok
from launcher.doctor.judge import judge_nodes, judge_shared
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
from launcher.follow.target import Target
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id, plan_run
from launcher.targets.hosts.inventory import Inventory


def diagnose(
    job: JobSpec,
    target_name: str,
    limit_s: float,
    inventory: Inventory | None = None,
    context: str | None = None,
) -> Iterator[Finding]:
    """Findings in the order in which they are made; ends with the first that ends all.

    ``limit_s`` bounds the run of the probe in all nodes; ``inventory`` are the machines of target
    ``hosts``, ``context`` is the kubeconfig's for target ``kubernetes``. Leaves nothing behind.
    Raises ``InputError`` for no such target, or no hosts.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-doctor-") as folder:
        if target_name == "hosts":
            from launcher.targets.hosts.doctor import diagnose_hosts

            yield from diagnose_hosts(job, inventory, Path(folder), limit_s)
            return
        if target_name == KUBERNETES:
            from launcher.targets.kubernetes.doctor import diagnose_kubernetes

            yield from diagnose_kubernetes(job, Path(folder), context)
            return
        yield from _diagnose_here(job, open_target(target_name, Path(folder)), limit_s)


def is_fit(findings: list[Finding]) -> bool:
    """Whether none of them failed."""
    return all(finding.status is not Status.FAILED for finding in findings)


def _diagnose_here(job: JobSpec, target: Target, limit_s: float) -> Iterator[Finding]:
    check, mounts = f"target {target.name}", target.name != "local"
    try:
        facts = target.facts(job)
    except LauncherError as error:
        yield failed(check, "this machine", error.what, error.hint)
        return
    yield ok(check, "this machine", describe(facts))
    try:
        command = MOUNTED_PROGRAM if mounts else str(PROGRAM)
        probe = as_probe(job, command, mounts_program=mounts)
        plan = plan_run(probe, facts, run_id=new_run_id(RUN_NAME, os.urandom(3)))
    except LauncherError as error:
        yield failed("plan", "job", error.what, error.hint)
        return
    with _folder_for_checkpoints(plan):
        yield from _probe_nodes(plan, target, limit_s)


def _probe_nodes(plan: LaunchPlan, target: Target, limit_s: float) -> Iterator[Finding]:
    try:
        answers = run_probe(plan, target, limit_s)
    except LauncherError as error:
        yield failed("start", f"{len(plan.nodes)} nodes", error.what, error.hint)
        return
    names = {index: f"node {index}" for index in answers.nodes}
    yield from judge_start(answers, names, limit_s)
    answered = {names[i]: facts for i, facts in answers.nodes.items() if facts is not None}
    yield from judge_nodes(answered, meets_others=len({n.local_addr for n in plan.nodes}) > 1)
    yield from judge_shared({names[i]: sees for i, sees in answers.shared.items()})
    yield judge_speed(answers, plan)


@contextlib.contextmanager
def _folder_for_checkpoints(plan: LaunchPlan) -> Iterator[None]:
    """Takes away again what the probe alone made."""
    own = Path(plan.checkpoint_dir)
    jobs_was_there = own.parent.exists()
    yield
    if own.name == OWN_FOLDER:
        shutil.rmtree(own, ignore_errors=True)
        if not jobs_was_there:
            with contextlib.suppress(OSError):
                own.parent.rmdir()
