"""One ``launcher play`` under way, its manifests, and what it leaves on the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.manifests.player import LABEL

ROOT = Path(__file__).parents[2]
IMAGE = "fabric-train:cpu"
LIMIT_S = 120.0
PRINT_ENV = "import json, os; print('ENV ' + json.dumps(dict(os.environ)), flush=True)"
ENDS_AT_ONCE = "pass"
WAIT = "import time; print('up', flush=True); time.sleep(600)"
COUNTED = """
import os, pathlib, sys
count = pathlib.Path('/scratch/count')
n = int(count.read_text()) if count.exists() else 0
count.write_text(str(n + 1))
print('start', n, flush=True)
sys.exit(CODE if n < FAILURES else 0)
"""


def job(program: str, **changes: Any) -> dict[str, Any]:
    """A manifest that knows nothing of this project."""
    container = {
        "name": "pytorch",
        "image": IMAGE,
        "command": ["python3", "-u", "-c", program],
        "env": [{"name": "MASTER_ADDR", "value": "mine"}, {"name": "OWN", "value": "x"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    pod = {
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    replica = {"restartPolicy": "OnFailure", "template": {"spec": pod}}
    spec: dict[str, Any] = {
        "nprocPerNode": "2",
        "runPolicy": {"cleanPodPolicy": "Running"},
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, **replica},
            "Worker": {"replicas": 2, **replica},
        },
    }
    metadata = {"name": "foreign"}
    item = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
    return {**item, "spec": {**spec, **changes}}


def elastic(program: str, restart_policy: str = "OnFailure", **run_policy: Any) -> dict[str, Any]:
    made = job(program)
    spec = made["spec"]
    del spec["pytorchReplicaSpecs"]["Master"]
    spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart_policy
    spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2, "maxRestarts": 3, "rdzvId": "a"}
    spec["runPolicy"] |= run_policy
    return made


class Played:
    """One ``launcher play`` under way."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], *options: str, **environ: str
    ) -> None:
        path, self._output = folder / "job.yaml", folder / "output"
        path.write_text(json.dumps(manifest))
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", "play", str(path), *options],
            cwd=ROOT,
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder), **environ},
        )

    @property
    def text(self) -> str:
        return self._output.read_text()

    def until(self, happened: Callable[[str], Any]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not happened(self.text):
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.1)

    def end(self) -> int:
        return self.process.wait(LIMIT_S)


@contextmanager
def plays(folder: Path) -> Iterator[Callable[..., Played]]:
    """Starts plays of manifests; those that still go on at the end are interrupted."""
    started: list[Played] = []

    def start(manifest: dict[str, Any], *options: str, **environ: str) -> Played:
        started.append(Played(folder, manifest, *options, **environ))
        return started[-1]

    yield start
    for played in started:
        if played.process.poll() is None:
            played.process.send_signal(signal.SIGINT)
            played.process.wait(LIMIT_S)


def networks(engine: Any) -> list[str]:
    return [n.name for n in engine.networks.list(filters={"label": LABEL})]


def nothing_is_left(engine: Any, played: Played) -> bool:
    left = [n for n in networks(engine) if n.startswith("foreign-")]
    left += [
        c.name
        for c in engine.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
        if c.name.startswith("foreign-")
    ]
    return not left and not list(played.folder.glob("launcher-play-*"))


def container(engine: Any, pod: str) -> Any:
    found = [
        c
        for c in engine.containers.list(filters={"label": LABEL}, ignore_removed=True)
        if c.name.startswith("foreign-") and c.name.endswith(pod)
    ]
    assert len(found) == 1
    return found[0]
