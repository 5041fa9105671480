"""The same job gives every worker the same environment, wherever it runs."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.pods_on_docker import IMAGE, Pods, pods_of
from tests.launcher.runner import Runner

pytestmark = pytest.mark.docker
SCRIPT = """
import json, os, pathlib
path = pathlib.Path(os.environ["RUN_DIR"], f"env-{os.environ['RANK']}.json")
path.write_text(json.dumps(dict(os.environ)))
"""
OURS = re.compile(
    "RANK|WORLD_SIZE|NODE_RANK|(LOCAL|GROUP|ROLE|MASTER|TORCH|PET|LT|LAUNCHER|OMP)_.*|TORCH.*"
    "|RUN_DIR|CHECKPOINT_DIR|PYTHONUNBUFFERED|GREETING"
)
"""What a launcher, an operator, torchrun, Fabric or the job itself sets."""
OF_THE_PLACE = {
    *("MASTER_ADDR", "MASTER_PORT", "RUN_DIR", "CHECKPOINT_DIR", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_ERROR_FILE", "LAUNCHER_RUN_ID", "LAUNCHER_RDZV_ENDPOINT"),
    *("LAUNCHER_NODE_DIR", "LAUNCHER_HEARTBEAT", "LAUNCHER_ASKED_FILE", "LAUNCHER_AGENT_SOCKET"),
}
"""Addresses, ports and folders: there everywhere, and another one in each place."""
OF_CHANCE = {"LAUNCHER_NODE_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"}
"""Counts: a machine that is too busy for a node's heartbeats starts the group once more."""
Run = Callable[[str, str], list[dict[str, str]]]
JOBS: dict[str, dict[str, Any]] = {
    "elastic engine": {},
    "static": {"rdzv": {"backend": "static"}, "engine": "agent"},
}
PLACES = [
    # What a `job` is told, the contract of all targets tells; and a static one in a PyTorchJob.
    *(("elastic engine", place) for place in ("pytorchjob", "trainjob", "jobset")),
    ("static", "pytorchjob"),
]


def fields_of(job: str) -> dict[str, Any]:
    return {
        "name": "digits",
        "image": IMAGE,
        "command": ["print_env.py"],
        "nnodes": 2,
        "nproc_per_node": 2,
        "max_restarts": 2,
        "stop_grace_s": 10,
        "env": {"GREETING": "hello"},
        "workdir": "/code",
        "mounts": ["./:/code:ro"],
        "kubernetes": {"checkpoint": "pvc/storage", "volumes": ["pvc/code:/code:ro"]},
        **JOBS[job],
    }


def read(folder: Path) -> list[dict[str, str]]:
    """Each worker's variables, by rank, with the place's own taken out."""
    found = []
    for rank in range(4):
        env = json.loads((folder / f"env-{rank}.json").read_text())
        ours = {name: value for name, value in env.items() if OURS.fullmatch(name)}
        assert all(ours[name] for name in OF_THE_PLACE & {*ours})
        assert all(ours[name].isdecimal() for name in OF_CHANCE & {*ours})
        found.append({name: without_chance(name, value) for name, value in ours.items()})
    return found


def without_chance(name: str, value: str) -> str:
    if name in OF_CHANCE:
        return "a number"
    return "its place's" if name in OF_THE_PLACE else value


@pytest.fixture(scope="module")
def run_by_launcher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``launcher run`` of a job on a target, once each."""

    @cache
    def run(job: str, target: str) -> list[dict[str, str]]:
        folder = tmp_path_factory.mktemp("by-launcher")
        (folder / "print_env.py").write_text(SCRIPT)
        (folder / "job.yaml").write_text(yaml.safe_dump(fields_of(job)))
        runner = Runner(folder)
        # Local processes inherit what the caller has, as they should; containers do not.
        runner.env = {n: v for n, v in runner.env.items() if not OURS.fullmatch(n)}
        runner.well("run", "job.yaml", "--on", target)
        return read(folder / "runs/latest")

    return run


@pytest.fixture
def run_as_pods(tmp_path: Path) -> Iterator[Run]:
    started: list[Pods] = []

    def run(job: str, kind: str) -> list[dict[str, str]]:
        fields = fields_of(job)
        fields["kubernetes"] = {**fields["kubernetes"], "kind": kind}
        # What a pod is run by is the agent, without being asked for.
        fields.pop("engine", None)
        pods = pods_of(fields, tmp_path)
        started.append(pods)
        (pods.claim("code") / "print_env.py").write_text(SCRIPT)
        for container in [pods.start(index) for index in range(2)]:
            ended = container.wait(timeout=120)
            assert ended["StatusCode"] == 0, container.logs().decode()
        return read(pods.claim("storage") / "runs/digits")

    yield run
    for pods in started:
        pods.close()


@pytest.mark.parametrize(("job", "place"), PLACES)
def test_the_same_job_gives_every_worker_the_same_environment(
    job, place, run_as_pods, run_by_launcher
):
    for there, here in zip(run_as_pods(job, place), run_by_launcher(job, "local"), strict=True):
        # Only what differs, which is short enough to be shown.
        assert dict(there.items() - here.items()) == dict(here.items() - there.items())
