"""A Docker target with a run root of its own, for tests on a real engine."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import docker

from launcher.follow.target import NodeObservation
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.runs.folder import RunFolder
from launcher.targets.docker.target import DockerTarget
from tests.waiting import wait_until

IMAGE = "fabric-train:cpu"
TORCHRUN = """#!/bin/sh
while case "$1" in --*=*) true ;; *) false ;; esac; do shift; done
exec "$@"
"""
LINGER = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
"""Runs until it is asked to end, and says so."""


class Place:
    """A Docker target with a run root of its own, and short ways to use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = DockerTarget(folder / "runs")
        self.api = docker.from_env(timeout=60).api
        self.run_ids: list[str] = []
        stand_in = folder / "bin" / "torchrun"
        stand_in.parent.mkdir()
        stand_in.write_text(TORCHRUN)
        stand_in.chmod(0o755)
        variables = self.api.inspect_image(IMAGE)["Config"]["Env"]
        self.image_path = next(v for v in variables if v.startswith("PATH="))[5:]

    def plan(self, script: str, **fields: Any) -> LaunchPlan:
        """A plan whose nodes run a shell script instead of torchrun."""
        mounts = [f"{self.folder / 'bin'}:/stand-in:ro", *fields.pop("mounts", [])]
        env = {"PATH": f"/stand-in:{self.image_path}", **fields.pop("env", {})}
        return self.plan_torch(["sh", "-c", script], mounts=mounts, env=env, **fields)

    def plan_torch(self, command: list[str], **fields: Any) -> LaunchPlan:
        job = JobSpec.model_validate(
            {
                "name": "t",
                "image": IMAGE,
                "command": command,
                "nproc_per_node": 1,
                # Its stand-in takes torchrun's place.
                "engine": "torchrun",
                "resources": {"gpus": 0, **fields.pop("resources", {})},
                "stop_grace_s": 20,
                **fields,
            }
        )
        self.run_ids.append(f"t-{uuid4().hex[:8]}")
        return plan_run(job, self.target.facts(job), run_id=self.run_ids[-1])

    def node(self, plan: LaunchPlan, index: int = 0) -> NodeObservation:
        return self.target.observe(plan).nodes[index]

    def run(self, plan: LaunchPlan) -> list[int | None]:
        """Submits, waits until all nodes have ended, collects; the exit codes."""
        self.target.submit(plan)
        self.wait_for_end(plan)
        self.target.collect(plan)
        return [node.exit_code for node in self.target.observe(plan).nodes]

    def wait_for_end(self, plan: LaunchPlan) -> None:
        wait_until(lambda: all(n.exit_code is not None for n in self.target.observe(plan).nodes))

    def console(self, plan: LaunchPlan, index: int = 0, incarnation: int = 0) -> bytes:
        path = RunFolder(Path(plan.run_dir)).console(index, incarnation)
        return path.read_bytes() if path.exists() else b""

    def held(self, run_id: str) -> list[str]:
        """Names of all that the engine holds of a run."""
        wanted = {"label": f"launcher.run-id={run_id}"}
        containers = self.api.containers(all=True, filters=wanted)
        names = [name for container in containers for name in container["Names"]]
        return sorted(names) + [n["Name"] for n in self.api.networks(filters=wanted)]
