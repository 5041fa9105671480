"""The targets of this machine, and a cluster's API server of the tests, keep the contract."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.contract import protocol
from tests.launcher.docker_runs import remove_left
from tests.launcher.fake_cluster import FakeCluster, ended, pod
from tests.launcher.runner import Runner
from tests.launcher.target_contract import JOB, Bench, TargetContract
from tests.waiting import wait_until

INDEX = "batch.kubernetes.io/job-completion-index"


class TestLocal(TargetContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        # They get SIGTERM when their launcher dies, however it dies.
        bench = Bench(name="local", launcher=Runner(tmp_path))
        bench.outlives_launcher, bench.ended_unseen = False, "stopped"
        return bench


@pytest.mark.docker
class TestDocker(TargetContract):
    @pytest.fixture
    def bench(self, tmp_path: Path, engine: Any) -> Any:
        runner = Runner(tmp_path)
        job = f"{JOB}mounts: [./:/code:ro]\nworkdir: /code\n"
        yield Bench(name="docker", launcher=runner, job=job)
        assert remove_left(engine, runner.run_ids()) == []


@dataclass(kw_only=True)
class ClusterBench(Bench):
    """The test is controller and kubelet."""

    server: FakeCluster

    def wait_up(self) -> None:
        wait_until(lambda: ("jobs", "tiny") in self.server.objects)
        for index in (0, 1):
            self.put(index)
            at = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime())
            self.server.log(f"tiny-{index}", (at, f"[{index}/{index}] up"))

    def put(self, index: int, **fields: Any) -> None:
        job = self.server.objects["jobs", "tiny"]
        labels = {protocol.LABEL_RUN_ID: self.launcher.run_ids()[0], INDEX: str(index)}
        item = pod(f"tiny-{index}", labels, **fields)
        item["metadata"]["ownerReferences"] = [{"uid": job["metadata"]["uid"]}]
        self.server.put("pods", item)

    def end_well(self) -> None:
        for index in (0, 1):
            self.put(index, phase="Succeeded", state=ended(0, "Completed"))
            self.server.log(f"tiny-{index}", ended=True)
        job = self.server.objects["jobs", "tiny"]
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.server.put("jobs", job)

    def scaled_to_one(self, run_id: str) -> bool:
        spec: dict[str, Any] = self.server.objects["jobs", "tiny"]["spec"]
        return bool(spec["parallelism"] == 1)


class TestKubernetes(TargetContract):
    @pytest.fixture
    def bench(self, tmp_path: Path, server: FakeCluster) -> Bench:
        job = f"{JOB}kubernetes: {{kind: job, checkpoint: ephemeral}}\n"
        return ClusterBench(name="kubernetes", launcher=Runner(tmp_path), job=job, server=server)

    # It takes half a minute, as what a stop asks of pods is waited for in full.
    def test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(
        self, bench: Bench
    ) -> None:
        super().test_a_run_takes_a_size_within_its_bounds_and_a_stop_leaves_nothing(bench)
