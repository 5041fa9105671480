"""``manifests``: from a job to the text of its Kubernetes objects, for 1,000 nodes of each kind."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator

from benchmarks.measure import Goal, Row, interleave

NODES = 1_000
KINDS = ("pytorchjob", "trainjob", "jobset", "job")


def measure_manifests(repetitions: int) -> Iterator[Row]:
    """A row for each kind."""
    sides = (functools.partial(plan_and_render_kind, kind, NODES) for kind in KINDS)
    for kind, ours in zip(KINDS, interleave(repetitions, *sides), strict=True):
        yield Row(
            benchmark="manifests",
            what=f"{kind}, {NODES:,} nodes",
            ours=ours,
            goal=Goal(of="seconds", most=1.0),
        )


def plan_and_render_kind(kind: str, nodes: int) -> float:
    """Seconds from a validated job to the text that ``kubectl apply`` takes."""
    from launcher.job.spec import JobSpec
    from launcher.targets.kubernetes.plan import plan_kubernetes
    from launcher.targets.kubernetes.render import render_manifest

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
