"""A script of one's own as pods, in containers of this machine."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.code.place import find_code
from launcher.code.record import read_code
from launcher.job.spec import JobSpec
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render.manifest import render_manifest
from tests.k8s.pods_on_docker import IMAGE, Pods
from tests.launcher.own_script.project import make_project

pytestmark = pytest.mark.docker
Start = Callable[..., list[str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, which is the current one."""
    folder = make_project(tmp_path)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def start(tmp_path: Path, project: Path) -> Iterator[Start]:
    """Starts the pods of ``train.py`` as a job file with these keys would; their outputs."""
    with contextlib.ExitStack() as stack:

        def run(nodes: int, kind: str, **keys: object) -> list[str]:
            fields = {"name": "train", "command": ["train.py"], "nproc_per_node": 1, "image": IMAGE}
            kubernetes = {"kind": kind, "checkpoint": "ephemeral"}
            job = JobSpec.model_validate(
                {**fields, **keys, "nnodes": nodes, "kubernetes": kubernetes}
            )
            place = find_code(job.command, None, None, project)
            assert place is not None
            code = read_code(place, tmp_path / "runs")
            plan = plan_kubernetes(
                job, run_id="train", run_root="runs", cwd=".", place=place, code=code
            )
            pods = Pods(plan, render_manifest(plan, code=code), tmp_path / "pods")
            stack.callback(pods.close)
            said = []
            for container in [pods.start(index) for index in range(nodes)]:
                ended = container.wait(timeout=120)
                said.append(container.logs().decode())
                assert ended["StatusCode"] == 0, said
            return said

        yield run


@pytest.mark.parametrize("kind", ["pytorchjob", "job"])
def test_pods_with_and_without_an_operator_start_in_their_code(kind, project, start):
    (project / "train.py").write_text(
        "import os, helper\nprint(helper.NAME, os.getcwd(), open('data.txt').read(3), flush=True)\n"
    )
    for said in start(2, kind):
        assert "losses /launcher/code 0.1" in said
