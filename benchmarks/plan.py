"""``plan``: planning and rendering many nodes, and whether the time grows with their number."""

from __future__ import annotations

import time
from collections.abc import Generator

from benchmarks.measure import Goal
from benchmarks.trials import Comparison, Round, Trial

FEW, MANY = 1_000, 10_000


def plans() -> Generator[Trial]:
    """A row for each number of nodes, and one that compares the time of one node in both."""
    limit, linear = Goal(of="seconds", most=1.0), Goal(of="ratio", most=1.3)
    yield Trial(
        take=take_round,
        rows=(
            Comparison(what=f"for docker, {FEW:,} nodes", ours="few", theirs=None),
            Comparison(what=f"for docker, {MANY:,} nodes", ours="many", theirs=None, goal=limit),
            Comparison(
                what=f"time per node, of {MANY:,} against of {FEW:,}",
                ours="one of many",
                theirs="one of few",
                goal=linear,
            ),
        ),
    )


def take_round() -> Round:
    """Both numbers of nodes in turn."""
    few, many = plan_and_render(FEW), plan_and_render(MANY)
    return {"few": few, "many": many, "one of few": few / FEW, "one of many": many / MANY}


def plan_and_render(nodes: int) -> float:
    """Seconds from a validated job to the text that would start so many nodes."""
    from launcher.job.spec import JobSpec
    from launcher.plan.launch_plan import plan_run
    from launcher.plan.target_facts import MachineFacts, TargetFacts
    from launcher.targets.docker.render import render_docker
    from launcher.targets.docker_options import ContainerSettings

    job = JobSpec.model_validate({"name": "digits", "command": ["-m", "train"], "nnodes": nodes})
    facts = TargetFacts(
        target="docker",
        accelerator="cpu",
        machine=MachineFacts(cpu_count=1),
        image="fabric-train:cpu",
        torch_version="2.13.0",
        run_root="/runs",
        cwd="/work",
        ports=(23456,),
        own=ContainerSettings(user="1000:1000"),
    )
    began = time.perf_counter()
    text = render_docker(plan_run(job, facts, run_id="digits-0a1b2c")).shell()
    duration_s = time.perf_counter() - began
    assert text.count("\n") > nodes, "every node has lines of its own"
    return duration_s
