"""Runs the probe in place of the job, on the job's nodes, rendezvous and backend."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.contract.clock import SystemClock
from launcher.contract.reasons import Reason
from launcher.doctor.answers import AllReduce, NodeAnswer
from launcher.doctor.finding import Finding, failed
from launcher.doctor.judge import judge_all_reduce
from launcher.follow.console import Console
from launcher.follow.loop import Follower, create_run
from launcher.follow.target import Target
from launcher.job.spec import JobSpec, MountSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.outcome import Outcome
from launcher.runs.records import Record, parse_record

PROGRAM = Path(__file__).with_name("program.py")
MOUNTED_PROGRAM = "/mnt/launcher-doctor.py"
RUN_NAME = "doctor"
OWN_FOLDER = ".doctor"
"""Within the job's checkpoint folder; removed at the end."""


@dataclass(frozen=True, kw_only=True)
class ProbeAnswers:
    """The nodes' answers by index; None where a node gave none. ``failure`` is the first cause."""

    nodes: Mapping[int, NodeAnswer | None]
    shared: Mapping[int, bool]
    all_reduce: AllReduce | None
    failure: str


def as_probe(job: JobSpec, command: str, *, mounts_program: bool = False) -> JobSpec:
    """The job with the probe as its command."""
    # In the job's own folder the probe's generation would fence out a run of the job.
    checkpoint_dir = None if job.checkpoint_dir is None else f"{job.checkpoint_dir}/{OWN_FOLDER}"
    own = []
    if mounts_program:
        own.append(MountSpec(source=str(PROGRAM), target=command, read_only=True))
    return job.model_copy(
        update={
            "name": RUN_NAME,
            "command": (command,),
            "max_restarts": 0,
            "checkpoint_dir": checkpoint_dir,
            "mounts": (*job.mounts, *own),
        }
    )


def run_probe(plan: LaunchPlan, target: Target, limit_s: float) -> ProbeAnswers:
    """Blocks for ``limit_s`` and the nodes' grace at most.

    Raises ``LauncherError`` if the run cannot be started."""
    outcome = _run(plan, target, limit_s)
    found = Path(plan.run_dir, "doctor")
    indices = [node.node_index for node in plan.nodes]
    shared = {index: _read(found / f"shared-{index}.json", bool) for index in indices}
    return ProbeAnswers(
        nodes={index: _read(found / f"node-{index}.json", NodeAnswer) for index in indices},
        shared={index: sees for index, sees in shared.items() if sees is not None},
        all_reduce=_read(found / "all-reduce.json", AllReduce),
        failure=_first_cause(outcome) if outcome.failure else "",
    )


def judge_start(answers: ProbeAnswers, names: Mapping[int, str], limit_s: float) -> list[Finding]:
    """A finding for every node that did not answer."""
    return [
        failed("start", names[i], f"no answer within {limit_s:g} s", "see the last row")
        for i, facts in answers.nodes.items()
        if facts is None
    ]


def judge_speed(answers: ProbeAnswers, plan: LaunchPlan) -> Finding:
    """The all-reduce, or why there was none."""
    world = f"{len(plan.nodes)} x {plan.nodes[0].nproc_per_node}"
    if answers.all_reduce is None and answers.failure:
        return failed("all-reduce", world, answers.failure, "launcher run shows all of it")
    return judge_all_reduce(answers.all_reduce, world)


def _run(plan: LaunchPlan, target: Target, limit_s: float) -> Outcome:
    run = create_run(plan, target)
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
    first = outcome.failure.first if outcome.failure else None
    return (first.exception if first else "") or outcome.detail or outcome.reason


def _read(path: Path, kind: type[Record]) -> Record | None:
    with contextlib.suppress(OSError, ValueError):
        return parse_record(kind, json.loads(path.read_text()))
    return None
