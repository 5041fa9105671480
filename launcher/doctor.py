"""Finds out before a job is run whether its target is fit for it. Every probe has a deadline."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher import launch, probes
from launcher.choose import describe, open_target
from launcher.clock import SystemClock
from launcher.console import Console
from launcher.errors import LauncherError
from launcher.follow import Follower
from launcher.job import JobSpec, MountSpec
from launcher.plan import LaunchPlan, plan_run
from launcher.probes.finding import Finding, Status, failed, ok
from launcher.probes.judge import judge_all_reduce, judge_nodes, judge_shared
from launcher.runs import Outcome
from launcher.state import Reason
from launcher.targets.base import Target

PROGRAM = Path(probes.__file__).with_name("program.py")
MOUNTED_PROGRAM = "/mnt/launcher-doctor.py"
RUN_ID = "doctor"
OWN_FOLDER = ".doctor"
"""Within the job's checkpoint folder; removed at the end."""


def diagnose(job: JobSpec, target_name: str, limit_s: float) -> Iterator[Finding]:
    """Findings in the order in which they are made; ends with the first that ends all.

    ``limit_s`` bounds the run of the probe in all nodes. Leaves nothing behind.
    """
    with tempfile.TemporaryDirectory(prefix="launcher-doctor-") as folder:
        target = open_target(target_name, Path(folder))
        check = f"target {target_name}"
        try:
            facts = target.facts(job)
        except LauncherError as error:
            yield failed(check, "this machine", error.what, error.hint)
            return
        yield ok(check, "this machine", describe(facts))
        try:
            plan = plan_run(as_probe(job, facts.target), facts, run_id=RUN_ID)
        except LauncherError as error:
            yield failed("plan", "job", error.what, error.hint)
            return
        with _folder_for_checkpoints(plan):
            yield from _probe_nodes(plan, target, limit_s)


def as_probe(job: JobSpec, target: str) -> JobSpec:
    """The job with the probe in place of its training; all else is the job's own."""
    mounted = target != "local"
    command = (MOUNTED_PROGRAM if mounted else str(PROGRAM),)
    # A folder of its own: an agent's generation in the job's would fence out a run that goes on.
    checkpoint_dir = None if job.checkpoint_dir is None else f"{job.checkpoint_dir}/{OWN_FOLDER}"
    own = MountSpec(source=str(PROGRAM), target=MOUNTED_PROGRAM, read_only=True)
    return job.model_copy(
        update={
            "name": RUN_ID,
            "command": command,
            "max_restarts": 0,
            "checkpoint_dir": checkpoint_dir,
            "mounts": (*job.mounts, own) if mounted else job.mounts,
        }
    )


def is_fit(findings: list[Finding]) -> bool:
    """Whether none of them failed."""
    return all(finding.status is not Status.FAILED for finding in findings)


def _probe_nodes(plan: LaunchPlan, target: Target, limit_s: float) -> Iterator[Finding]:
    try:
        outcome = _run(plan, target, limit_s)
    except LauncherError as error:
        yield failed("start", f"{len(plan.nodes)} nodes", error.what, error.hint)
        return
    found = Path(plan.run_dir, "doctor")
    nodes = {node.node_index: _read(found / f"node-{node.node_index}.json") for node in plan.nodes}
    for index in (index for index, facts in nodes.items() if facts is None):
        yield failed(
            "start", f"node {index}", f"no answer within {limit_s:g} s", "see the last row"
        )
    answered = {f"node {index}": facts for index, facts in nodes.items() if facts is not None}
    yield from judge_nodes(answered, meets_others=len({n.local_addr for n in plan.nodes}) > 1)
    shared = {f"node {index}": _read(found / f"shared-{index}.json") for index in nodes}
    yield from judge_shared({where: sees for where, sees in shared.items() if sees is not None})
    world = f"{len(plan.nodes)} x {plan.nodes[0].nproc_per_node}"
    measured = _read(found / "all-reduce.json")
    if measured is None and outcome.failure:
        yield failed("all-reduce", world, _first_cause(outcome), "launcher run shows all of it")
    else:
        yield judge_all_reduce(measured, world)


def _run(plan: LaunchPlan, target: Target, limit_s: float) -> Outcome:
    run = launch.create_run(plan, target)
    console = Console(io.StringIO(), terminal=False, colour=False)
    follower = Follower(run, plan, target, console, SystemClock())

    def give_up() -> None:
        follower.stop_reason = Reason.STOP_REQUESTED

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        return follower.follow()
    finally:
        timer.cancel()


def _first_cause(outcome: Outcome) -> str:
    failure = outcome.failure or {}
    first = failure.get("first") or {}
    return str(first.get("message") or outcome.detail or outcome.reason)


def _read(path: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


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
