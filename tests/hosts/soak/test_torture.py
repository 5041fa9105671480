"""Arguments and variables arrive byte for byte, whatever they hold and wherever the job runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.job.spec import JobSpec
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render import render_manifest
from tests.conftest import DOCKER_IMAGE
from tests.hosts.typist import Typist
from tests.k8s.pods_on_docker import Pods
from tests.launcher.runner import Runner

Fields = dict[str, Any]
Seen = dict[str, Any]
TORTURE = [
    "",
    "plain",
    "two words",
    "  spaces  ",
    "it's",
    'say "hi"',
    "back\\slash\\",
    "new\nline\n",
    "tab\tand\rreturn",
    "$HOME",
    "$$ $(RANK) $$(RANK) ${RANK}",
    "$(touch /tmp/launcher-torture)",
    "`touch /tmp/launcher-torture`",
    "a;b|c&d>e<f",
    "*?[a-z]{1,2}",
    "~root",
    "!history",
    "-leading-dash",
    "--",
    "--option=value with space",
    "#comment",
    "%s%n",
    "{node_index} {{}}",
    "ünïcödé ✓ 你好",
    "\u202eright to left",
    "\x01\x7f",
    "x" * 100_000,
]
ENV = {f"T_{number}": text for number, text in enumerate(TORTURE)}
ECHO = """
import json, os, pathlib, sys
found = {"argv": sys.argv[1:], "env": {k: v for k, v in os.environ.items() if k.startswith("T_")}}
pathlib.Path(os.environ["RUN_DIR"], "metrics.json").write_text(json.dumps({"found": found}))
"""


def type_it(runner: Runner, fields: Fields, *options: str) -> Seen:
    runner.write(ECHO)
    job = {"name": "tiny", "nproc_per_node": 1, "env": ENV, "command": ["train.py"], **fields}
    (runner.folder / "job.yaml").write_text(json.dumps(job))
    runner.well("run", "job.yaml", *options, "--", *TORTURE)
    found: Seen = runner.outcome["metrics"]["found"]
    return found


def on_local(fields: Fields, folder: Path, request: pytest.FixtureRequest) -> Seen:
    return type_it(Runner(folder), fields, "--on", "local")


def on_docker(fields: Fields, folder: Path, request: pytest.FixtureRequest) -> Seen:
    return type_it(Runner(folder), fields | mounted(folder), "--on", "docker")


def on_hosts(fields: Fields, folder: Path, request: pytest.FixtureRequest) -> Seen:
    typist: Typist = request.getfixturevalue("typist")
    return type_it(typist, fields | {"hosts": {"runtime": "python"}})


def on_hosts_in_docker(fields: Fields, folder: Path, request: pytest.FixtureRequest) -> Seen:
    request.getfixturevalue("four_engines")
    typist: Typist = request.getfixturevalue("typist")
    typist.limit_s = 400.0
    return type_it(typist, fields | mounted(folder))


def mounted(folder: Path) -> Fields:
    return {"mounts": [f"{folder}:/code:ro"], "workdir": "/code"}


def on_kubernetes(fields: Fields, folder: Path, request: pytest.FixtureRequest) -> Seen:
    cluster = {"kind": "job", "checkpoint": "pvc/storage", "volumes": ["pvc/code:/code:ro"]}
    job = {"name": "tiny", "image": DOCKER_IMAGE, "command": ["train.py"], "nproc_per_node": 1}
    job |= {"env": ENV, "kubernetes": cluster, "workdir": "/code"}
    spec = JobSpec.model_validate(job)
    plan = plan_kubernetes(spec, run_id="tiny", run_root="runs", cwd=".", extra_args=tuple(TORTURE))
    pods = Pods(plan, render_manifest(plan), folder)
    try:
        (pods.claim("code") / "train.py").write_text(ECHO)
        container = pods.start(0)
        assert container.wait(timeout=120)["StatusCode"] == 0, container.logs().decode()[:3000]
        metrics = json.loads((pods.claim("storage") / "runs/tiny/metrics.json").read_text())
    finally:
        pods.close()
    found: Seen = metrics["found"]
    return found


HOSTS, DOCKER = pytest.mark.hosts, pytest.mark.docker
LONG = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        pytest.param(on_local, {"engine": "agent"}, id="local"),
        pytest.param(on_local, {"engine": "torchrun"}, id="local-torchrun"),
        pytest.param(on_docker, {"engine": "agent"}, id="docker", marks=DOCKER),
        pytest.param(on_docker, {"engine": "torchrun"}, id="docker-torchrun", marks=DOCKER),
        pytest.param(on_hosts, {"engine": "agent"}, id="hosts-python", marks=HOSTS),
        pytest.param(on_hosts, {"engine": "torchrun"}, id="hosts-python-torchrun", marks=HOSTS),
        pytest.param(
            on_hosts_in_docker, {"engine": "agent"}, id="hosts-docker", marks=[HOSTS, DOCKER, LONG]
        ),
        pytest.param(on_kubernetes, {}, id="kubernetes", marks=DOCKER),
    ],
)
def test_arguments_and_variables_arrive_byte_for_byte(run, fields, tmp_path, request):
    found = run(fields, tmp_path, request)
    assert found["argv"] == TORTURE
    assert found["env"] == ENV
    assert not os.path.exists("/tmp/launcher-torture")
