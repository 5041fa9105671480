"""Runs the probe in place of the job, on the job's nodes, rendezvous and backend, and reads its
answers."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.contract import typed
from launcher.contract.causes import Cause
from launcher.contract.clock import AwakeClock
from launcher.contract.records import Record, parse_record
from launcher.doctor.finding import Finding, failed
from launcher.doctor.judge import AllReduce, NodeAnswer, judge_all_reduce
from launcher.follow.console import Console
from launcher.follow.loop import Follower, create_run
from launcher.follow.target import Target
from launcher.job.spec import JobSpec, MountSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.outcome import Outcome

PROGRAM = Path(__file__).with_name("program.py")
MOUNTED_PROGRAM = "/mnt/launcher-doctor.py"
RUN_NAME = "doctor"
OWN_FOLDER = ".doctor"
"""Within the job's checkpoint folder; removed at the end."""


@dataclass(frozen=True, kw_only=True)
class ProbeAnswers:
    """The nodes' answers by the nodes' names.

    ``silent`` are the nodes without one; ``failure`` is the first cause, if the run failed;
    ``world`` is nodes x workers of each.
    """

    nodes: Mapping[str, NodeAnswer]
    silent: Sequence[str]
    all_reduce: AllReduce | None
    failure: str
    world: str


def as_probe(job: JobSpec, command: str, *, mounts_program: bool = False) -> JobSpec:
    """The job with the probe as its command."""
    # In the job's own folder the probe's generation would fence out a run of the job.
    checkpoint_dir = None if job.checkpoint_dir is None else f"{job.checkpoint_dir}/{OWN_FOLDER}"
    mounts = []
    if mounts_program:
        mounts.append(MountSpec(source=str(PROGRAM), target=command, read_only=True))
    return job.model_copy(
        update={
            "name": RUN_NAME,
            "command": (command,),
            "max_restarts": 0,
            "checkpoint_dir": checkpoint_dir,
            "mounts": (*job.mounts, *mounts),
        }
    )


def run_probe(plan: LaunchPlan, target: Target, limit_s: float) -> ProbeAnswers:
    """Blocks for ``limit_s`` and the nodes' grace at most.

    Raises ``LauncherError`` if the run cannot be started.
    """
    outcome = _run(plan, target, limit_s)
    results = Path(plan.run_dir, "doctor")
    indices = [node.node_index for node in plan.nodes]
    names = {i: plan.machines[i].name if plan.machines else f"node {i}" for i in indices}
    nodes = {name: _read(results / f"node-{i}.json", NodeAnswer) for i, name in names.items()}
    first = outcome.failure.first if outcome.failure else None
    cause = (first.exception if first else "") or outcome.detail or outcome.cause
    return ProbeAnswers(
        nodes={name: facts for name, facts in nodes.items() if facts is not None},
        silent=[name for name, facts in nodes.items() if facts is None],
        all_reduce=_read(results / "all-reduce.json", AllReduce),
        failure=cause if outcome.failure else "",
        world=f"{len(plan.nodes)} x {plan.nproc_per_node}",
    )


def judge_start(answers: ProbeAnswers, limit_s: float) -> Iterator[Finding]:
    """A finding for every node that did not answer."""
    what = (
        "no answer before the run failed" if answers.failure else f"no answer within {limit_s:g} s"
    )
    for name in answers.silent:
        yield failed("start", name, what, "see the last row")


def judge_speed(answers: ProbeAnswers) -> Finding:
    """The all-reduce, or why there was none."""
    if answers.all_reduce is None and answers.failure:
        fix = f"{typed.command('run')} shows all of it"
        return failed("all-reduce", answers.world, answers.failure, fix)
    return judge_all_reduce(answers.all_reduce, answers.world)


def _run(plan: LaunchPlan, target: Target, limit_s: float) -> Outcome:
    run = create_run(plan, target)
    console = Console(io.StringIO())
    follower = Follower(run, plan, target, console, AwakeClock())

    def give_up() -> None:
        follower.stop_reason = Cause.STOP_REQUESTED

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        return follower.follow()
    finally:
        timer.cancel()


def _read(path: Path, kind: type[Record]) -> Record | None:
    with contextlib.suppress(OSError, ValueError):
        return parse_record(kind, json.loads(path.read_text()))
    return None
