"""``manifests``: from a job to the text of its Kubernetes objects, for 1,000 nodes of each kind."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Generator

from benchmarks.measure import Goal
from benchmarks.trials import Trial, compare

NODES = 1_000
KINDS = ("pytorchjob", "trainjob", "jobset", "job")


def manifests() -> Generator[Trial]:
    """A row for each kind."""
    for kind in KINDS:
        yield compare(
            f"{kind}, {NODES:,} nodes",
            functools.partial(plan_and_render_kind, kind, NODES),
            goal=Goal(of="seconds", most=1.0),
        )


def plan_and_render_kind(kind: str, nodes: int) -> float:
    """Seconds from a validated job to the text that ``kubectl apply`` takes."""
    from launcher.job.spec import JobSpec
    from launcher.targets.kubernetes.plan import plan_kubernetes
    from launcher.targets.kubernetes.render.manifest import render_manifest

    job = JobSpec.model_validate(
        {
            "name": "digits",
            "command": ["-m", "train"],
            "nnodes": nodes,
            "kubernetes": {"kind": kind, "checkpoint": "pvc/fabric-train"},
        }
    )
    began = time.perf_counter()
    plan = plan_kubernetes(job, run_id="digits", run_root="/runs", cwd="/work")
    text = render_manifest(plan).yaml()
    duration_s = time.perf_counter() - began
    assert re.search(rf": {nodes}\b", text), "the objects say how many nodes there are"
    return duration_s
