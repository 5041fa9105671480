"""A run on the server of the tests, followed in a thread as the command line does it in its own."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from launcher.code.record import PackedCode, write_code
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import LauncherError
from launcher.follow.console import Console
from launcher.follow.loop import Follower
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from launcher.targets.kubernetes.plan import PodSettings, plan_kubernetes
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.fake_cluster import FakeCluster, Object, pod
from tests.waiting import LIMIT_S

INDEX = "batch.kubernetes.io/job-completion-index"
ROLE, REPLICA = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
RUN_ID = "digits-0a1b2c"
CREATED = {"type": "Created", "status": "True", "reason": "PyTorchJobCreated"}
ROOT = Path(__file__).parents[2]
PLAIN = (
    "name: digits\ncommand: [-m, train]\nnnodes: 1\n"
    "kubernetes: {kind: job, checkpoint: ephemeral}\n"
)
"""A job file of one node."""


def plan_in(folder: Path, *, kind: str = "job", **fields: Any) -> LaunchPlan:
    """A job of two nodes, elastic where its kind can be; ``kubernetes`` adds to that section."""
    section = {"kind": kind, "checkpoint": "ephemeral", **fields.pop("kubernetes", {})}
    nodes = "1:2" if kind in ("job", "pytorchjob") else 2
    given = {"name": "digits", "command": ["-m", "train"], "max_restarts": 3, "nnodes": nodes}
    job = JobSpec.model_validate({**given, **fields, "kubernetes": section})
    return plan_kubernetes(job, run_id=RUN_ID, run_root=str(folder / "runs"), cwd=str(folder))


class ClusterRun:
    """One run; its objects are made when this returns."""

    def __init__(
        self,
        server: FakeCluster,
        folder: Path,
        plan: LaunchPlan,
        code: PackedCode | None = None,
    ) -> None:
        self.server, self.plan = server, plan
        self.output = folder / "console"
        self.folder = RunFolder(Path(plan.run_dir))
        self.folder.create(plan, "", 1.0)
        if code is not None:
            write_code(self.folder.path, code)
        target = KubernetesTarget(folder / "runs")
        console = Console(self.output.open("w"))
        self.follower = Follower(self.folder, plan, target, console, SystemClock())
        self.outcome: Outcome | None = None
        self.error: LauncherError | None = None
        self._submitted = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        server.until(lambda: self._submitted.is_set() or not self._thread.is_alive())

    def _follow(self) -> None:
        try:
            self.outcome = self.follower.follow(self._submitted.set)
        except LauncherError as error:
            self.error = error

    @property
    def text(self) -> str:
        return self.output.read_text()

    def said(self, words: str) -> str:
        """Waits until the console shows these words."""
        self.server.until(lambda: words in self.text)
        return self.text

    def _join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), self.text

    def end(self) -> Outcome:
        self._join()
        assert self.outcome is not None, self.error
        return self.outcome

    def refused(self) -> LauncherError:
        """How it ended without an outcome."""
        self._join()
        assert self.error is not None, self.outcome
        return self.error

    def put(self, name: str, index: int = 0, **fields: Any) -> Object:
        """A pod of the run, as ``put_pod``."""
        return put_pod(self.server, name, index, kind=PodSettings.of(self.plan).kind, **fields)

    def condition(self, kind: str, **fields: str) -> None:
        """What a controller says of the job, beside what it said before.

        As the training operator does: Running and Restarting remove each other, and a job that has
        ended is not Running.
        """
        key = next(key for key in self.server.objects if key[0].endswith(("jobs", "jobsets")))
        job = self.server.objects[key]
        going = {"Running", "Restarting"}
        gone = going if kind in going else {kind}
        held = (job.get("status") or {"conditions": [CREATED]})["conditions"]
        kept = [one for one in held if one["type"] not in gone]
        if kind not in (*going, "Created", "Suspended"):
            kept = [one | {"status": "False"} if one["type"] in going else one for one in kept]
        job["status"] = {"conditions": [*kept, {"type": kind, "status": "True", **fields}]}
        self.server.put(key[0], job)


def put_pod(
    server: FakeCluster,
    name: str,
    index: int = 0,
    *,
    kind: str = "job",
    made: str | None = None,
    **fields: Any,
) -> Object:
    """A pod of the run; ``made`` is when, of this minute's seconds."""
    labels = {protocol.LABEL_RUN_ID: RUN_ID, INDEX: str(index)}
    if kind == "pytorchjob":
        labels = {protocol.LABEL_RUN_ID: RUN_ID, ROLE: "worker", REPLICA: str(index)}
        # Also where there are only workers.
        labels |= {} if index else {"training.kubeflow.org/job-role": "master"}
    item = pod(name, labels, **fields)
    if made is not None:
        item["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{made}Z"
    return server.put("pods", item)


def agents_outcome(
    *,
    at: float,
    message: str,
    rank: int = 0,
    cause: str = "restarts-exhausted",
    exit_code: int = 1,
) -> str:
    """What an agent leaves as its pod's termination message; ``at`` is when its worker failed."""
    end = {
        "attempt": 0, "rank": rank, "local_rank": 0, "exit_code": exit_code, "failed_at": at,
        "cause": "exit", "exception": message, "log": f"nodes/{rank}/0/attempt-0/rank-{rank}",
    }  # fmt: skip
    told = {
        "schema": 3, "node_index": rank, "incarnation": 0, "cause": cause, "exit_code": 1,
        "detail": f"rank {rank}: {message}", "attempts": 4, "restarts": {"exit": 3},
        "started_at": 1.0, "finished_at": at + 1.0, "first": end, "collateral": [],
    }  # fmt: skip
    return json.dumps(told)


def started(folder: Path, job: str, *words: str) -> subprocess.Popen[str]:
    """``launcher run`` in a process of its own."""
    (folder / "job.yaml").write_text(job)
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", "run", "job.yaml", "--on", "kubernetes", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
