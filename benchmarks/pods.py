"""``pods``: memory of the process that follows the logs of 256 pods at once.

The cluster is the server of the tests, in this process; what is measured are those that ask it.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.commands import ROOT
from benchmarks.measure import Goal
from benchmarks.trees import Trees, read_pss_bytes
from benchmarks.trials import Comparison, Trial, in_turn

PODS = 256
FEW, MANY = 1, 100
"""Lines of each pod."""
RUN_ID = "digits-0a1b2c"
NAMESPACE = "team"
PEER = ROOT / "benchmarks" / "peers" / "pod_logs.py"
POLL_S = 0.2


def pods() -> Generator[Trial]:
    """A row against a plain loop over the official client, and one for what more lines cost."""
    sides = {
        "ours": functools.partial(read_memory, "launcher", PODS, MANY),
        "theirs": functools.partial(read_memory, "peer", PODS, MANY),
        "few": functools.partial(read_memory, "launcher", PODS, FEW),
    }
    what = f"memory of following {PODS} pods, {MANY * PODS:,} lines, against a plain loop"
    yield Trial(
        take=in_turn(sides),
        rows=(
            Comparison(what=what, goal=Goal(of="ratio", most=1.5), unit="MB"),
            Comparison(
                what=f"memory after {MANY} lines of each pod against after {FEW}",
                theirs="few",
                goal=Goal(of="ratio", most=1.1),
                unit="MB",
            ),
        ),
        warm_up=0,
    )


def read_memory(side: str, pods: int, lines: int) -> float:
    """Megabytes of the follower once it has printed so many lines of each pod, all still open."""
    from tests.launcher.fake_cluster import FakeCluster

    server = FakeCluster()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            config = server.write_kubeconfig(folder / "kubeconfig", NAMESPACE)
            fill(server, folder, pods, lines)
            env = {"KUBECONFIG": str(config), "PYTHONPATH": str(ROOT)}
            with Trees(folder, env) as trees:
                trees.start(follow_argv(side, folder))
                console = folder / "console-0"
                trees.wait_for(lambda: has_lines(console, pods * lines), f"lines of {pods} pods")
                return read_pss_bytes(trees.living()) / 1e6
    finally:
        server.close()


def follow_argv(side: str, folder: Path) -> list[str]:
    """The command of one side; both print every line with its pod in front, and go on."""
    if side == "peer":
        return [sys.executable, str(PEER), NAMESPACE, f"launcher.run-id={RUN_ID}"]
    runs = str(folder / "runs")
    return [sys.executable, "-m", "launcher", "logs", "--follow", RUN_ID, "--runs", runs]


def has_lines(console: Path, count: int) -> bool:
    """Whether so many lines are there; looks seldom, so that the follower has the cores."""
    time.sleep(POLL_S)
    return console.read_bytes().count(b"\n") >= count


def fill(server: object, folder: Path, pods: int, lines: int) -> None:
    """A run of that many pods, submitted by a launcher that is gone, all of which write."""
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder
    from launcher.targets.kubernetes.cluster_job import CLUSTER_FILE
    from launcher.targets.kubernetes.plan import plan_kubernetes
    from launcher.targets.kubernetes.render import render_manifest
    from tests.launcher.fake_cluster import FakeCluster, pod

    assert isinstance(server, FakeCluster), "made by the caller"
    spec = {"kind": "job", "checkpoint": "ephemeral"}
    fields = {"name": "digits", "command": ["-m", "train"], "nnodes": pods, "nproc_per_node": 1}
    job = JobSpec.model_validate({**fields, "kubernetes": spec})
    root = str(folder / "runs")
    plan = plan_kubernetes(job, run_id=RUN_ID, run_root=root, cwd=str(folder))
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", time.time())
    place = {"context": "fake", "namespace": NAMESPACE}
    (run.path / CLUSTER_FILE).write_text(json.dumps(place))
    server.put("jobs", dict(render_manifest(plan).objects[-1]))
    for index in range(pods):
        name, label = f"digits-{index}", "batch.kubernetes.io/job-completion-index"
        server.put("pods", pod(name, {"launcher.run-id": RUN_ID, label: str(index)}))
        said = [
            (stamp(line), f"[{index}/{index}] step {line}: loss 0.1234") for line in range(lines)
        ]
        server.log(name, *said)


def stamp(line: int) -> str:
    """When a line was written, ten each second."""
    minutes, tenths = divmod(line, 600)
    return f"2026-01-01T00:{minutes:02d}:{tenths // 10:02d}.{tenths % 10}Z"
