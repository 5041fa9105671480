"""Code that no ConfigMap takes: sent into one pod, got from there by the others and by later ones.

Init containers run as processes of this machine, each in a folder of its own in the place of
``/launcher``, at addresses of its own in the place of its pod's name.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.engine.health_server import Health, start_health_server
from launcher.code.place import find_code
from launcher.code.record import PackedCode, read_code
from launcher.contract.errors import ExitCode, InputError
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.fabric_train.forked import find_free_port
from tests.k8s.manifests_table import pod_specs
from tests.launcher.cluster_run import RUN_ID, ClusterRun, put_pod
from tests.launcher.fake_cluster import FakeCluster, ended
from tests.launcher.own_script.project import make_project

SIZE = 8_500_000
WORDS = ("train.py", "--on", "kubernetes", "--nnodes", "2", "--nproc-per-node", "1")
HEALTH = Health(
    healthy=True, phase="join", attempt=0, world_size=0, step=0, heartbeat_age_s=None, restarts={},
    phase_s={},
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_project(tmp_path)
    (folder / "big.bin").write_bytes(os.urandom(SIZE))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def port() -> int:
    return find_free_port()


def code_in(project: Path) -> PackedCode:
    place = find_code(("train.py",), None, None, project)
    assert place is not None
    return read_code(place, project / "runs")


def plan_in(project: Path, port: int | None, nodes: int = 2, **section: Any) -> LaunchPlan:
    kubernetes = {"kind": "job", "checkpoint": "ephemeral", **section}
    job = JobSpec.model_validate(
        {
            "name": "train", "command": ["train.py"], "nnodes": nodes, "kubernetes": kubernetes,
            "agent": {"health": {"port": port}},
        }
    )  # fmt: skip
    place = find_code(job.command, None, None, project)
    where = {"run_root": str(project / "runs"), "cwd": str(project)}
    return plan_kubernetes(job, run_id=RUN_ID, place=place, code=code_in(project), **where)


def finish(run: ClusterRun) -> None:
    for _, name in [key for key in run.server.objects if key[0] == "pods"]:
        run.server.log(name, ended=True)
        run.server.remove("pods", name)
    run.condition("Complete")
    run.end()


class Pods:
    """The pods of a run, which get as far as their node's program."""

    def __init__(self, server: FakeCluster, folder: Path, port: int) -> None:
        self.server, self._folder, self._port = server, folder, port
        self.started: list[subprocess.Popen[str]] = []
        self.claim = folder / "claim"

    def start(self, name: str, index: int, made: str = "00") -> subprocess.Popen[str]:
        """A new pod: its init container, and what follows when that has ended."""
        own = self._folder / name
        own.mkdir()
        (container,) = self._spec()["initContainers"]
        if "claim-0" in {mount["name"] for mount in container["volumeMounts"]}:
            self.claim.mkdir(exist_ok=True)
            (own / "run").symlink_to(self.claim)
        waiting = {"waiting": {"reason": "PodInitializing"}}
        running = {"name": "code", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        inits = {"initContainerStatuses": [running]}
        put_pod(self.server, name, index, made=made, phase="Pending", state=waiting, **inits)

        def words(argv: list[str]) -> list[str]:
            changed = [word.replace("/launcher/", f"{own}/") for word in argv]
            for number in range(2):
                name = f"train-{number}.train"
                changed = [word.replace(name, f"127.0.0.{number + 10}") for word in changed]
            return [sys.executable if word == "python3" else word for word in changed]

        pipe = subprocess.PIPE
        self.server.programs[name] = lambda argv: subprocess.Popen(
            words(argv), stdin=pipe, stdout=pipe, stderr=pipe
        )
        program = subprocess.Popen(words(container["command"]), stderr=pipe, text=True)
        self.started.append(program)

        def follow() -> None:
            code = program.wait()
            if code:
                state = {"name": "code", "state": ended(code)}
                failed = {"phase": "Failed", "state": waiting, "initContainerStatuses": [state]}
                put_pod(self.server, name, index, made=made, **failed)
                return
            run = next(iter(own.glob("run/**/code-*.tar.gz"))).parent
            with contextlib.suppress(OSError):  # Of a pod before it, which goes on answering.
                start_health_server(f"127.0.0.{index + 10}", self._port, lambda: HEALTH, run)
            put_pod(self.server, name, index, made=made)

        threading.Thread(target=follow, daemon=True).start()
        return program

    def _spec(self) -> dict[str, Any]:
        (spec,) = pod_specs(self.server.objects["jobs", "train"])
        return spec

    def has_code(self, name: str, project: Path) -> bool:
        path = self._folder / name / "code/big.bin"
        self.server.until(lambda: self._state(name) == "Running")
        return path.read_bytes() == (project / "big.bin").read_bytes()

    def _state(self, name: str) -> str:
        return str(self.server.objects["pods", name]["status"]["phase"])


@pytest.fixture
def pods(server: FakeCluster, tmp_path: Path, port: int) -> Iterator[Pods]:
    found = Pods(server, tmp_path / "pods", port)
    (tmp_path / "pods").mkdir()
    yield found
    for program in found.started:
        program.kill()
        program.wait()


def test_one_pod_gets_the_code_from_the_launcher_and_the_others_and_later_ones_from_a_pod(
    server, project, pods, port
):
    run = ClusterRun(server, project, plan_in(project, port), code_in(project))
    pods.start("train-0-a", 0)
    pods.start("train-1-a", 1)
    assert pods.has_code("train-0-a", project)
    assert pods.has_code("train-1-a", project)
    run.said("sending the code to train-0-a: 4 files of 8,50")
    server.remove("pods", "train-1-a")
    pods.start("train-1-b", 1, "10")
    assert pods.has_code("train-1-b", project)
    assert server.executed == ["train-0-a"], "sent once"
    assert not [one for one in server.objects if one[0] == "configmaps" and "code" in one[1]]
    finish(run)


# -- what cannot be sent --------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["create", "get"])
def test_without_the_right_nothing_is_made_and_the_ways_that_work_are_named(
    verb, server, project, port
):
    server.denied.add((verb, "pods/exec"))
    target = KubernetesTarget(project / "runs")
    with pytest.raises(InputError) as told:
        target.check(plan_in(project, port))
    assert "code of more than 8,000 kB packed is sent into a pod" in told.value.what
    assert "you may not create and get pods/exec in namespace team" in told.value.what
    assert "k8s/base/rbac.yaml grants it" in told.value.hint
    assert "launcher build" in told.value.hint


def test_a_manifest_cannot_carry_it_and_the_ways_that_work_are_named(typed, project, monkeypatch):
    monkeypatch.chdir(project)
    code, said = typed("render", *WORDS)
    assert code == ExitCode.BAD_INPUT
    assert f"the code in {project}, 4 files of 8,50" in said
    assert "which takes 8,000 kB packed; the largest files:\n    8,500 kB  big.bin\n" in said
    assert "fix: launcher run, which sends it into the pods; or code: {git: URL, ref: " in said
    assert "an image that holds it" in said
