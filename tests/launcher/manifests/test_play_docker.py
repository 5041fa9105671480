"""``launcher play`` in real containers: foreign manifests, restarts, losses, what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.manifests.pytorchjob import PyTorchJob, operator_env
from launcher.manifests.source import parse_manifest
from tests.launcher.played import (
    COUNTED,
    ENDS_AT_ONCE,
    LIMIT_S,
    PRINT_ENV,
    ROOT,
    WAIT,
    Played,
    elastic,
    job,
    nothing_is_left,
    plays,
)
from tests.programs import run_program

pytestmark = pytest.mark.docker


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Played]]:
    with plays(tmp_path) as start:
        yield start


@pytest.fixture
def engine() -> Any:
    import docker

    return docker.from_env()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(job, id="static"),
        pytest.param(elastic, id="elastic", marks=pytest.mark.slow),
    ],
)
def test_a_foreign_job_sees_the_environment_that_the_operator_would_give(
    make: Callable[[str], dict[str, Any]], play: Callable[[dict[str, Any]], Played], engine: Any
) -> None:
    # The decisive pod waits for the others: they would be stopped before they have printed.
    names_resolve = (
        "import socket; names = ['foreign-worker-0', 'foreign-worker-1.default', "
        "'foreign-worker-1.default.svc.cluster.local']; "
        "print('found', len([socket.gethostbyname(name) for name in names]), flush=True)"
    )
    manifest = make(f"{PRINT_ENV}; import time; time.sleep(1); {names_resolve}; time.sleep(2)")
    played = play(manifest)
    assert played.end() == 0, played.text
    printed = dict(re.findall(r"^\[([a-z]+-\d)\] ENV (\{.*\})$", played.text, re.MULTILINE))
    read = PyTorchJob(item=parse_manifest(json.dumps(manifest), "job.yaml")[0])
    pods = [(replica, index) for replica in read.replicas for index in range(replica.pods)]
    names = [f"{replica.kind.lower()}-{index}" for replica, index in pods]
    assert set(printed) == set(names)
    assert played.text.count("found 3") == len(names), "by the names of their services"
    for (replica, index), pod in zip(pods, names, strict=True):
        env = json.loads(printed[pod])
        expected = {"MASTER_ADDR": "mine", "OWN": "x"} | dict(operator_env(read, replica, index))
        assert {name: env.get(name) for name in expected} == expected
        image_only = {"PYTHONUNBUFFERED"}
        ours = {n for n in env if n.startswith(("PET_", "MASTER_"))} | {"OWN"} | image_only
        assert ours == {n for n in expected if n not in ("RANK", "WORLD_SIZE")}
        assert env["HOSTNAME"] == f"foreign-{pod}"
    assert nothing_is_left(engine, played)


def test_a_failed_container_is_restarted_in_its_pod_with_what_the_pod_keeps(
    play: Callable[[dict[str, Any]], Played], engine: Any
) -> None:
    program = COUNTED.replace("CODE", "1").replace("FAILURES", "2")
    played = play(elastic(program))
    assert played.end() == 0, played.text
    for n in (0, 1, 2):
        assert re.search(rf"^\[worker-\d\] start {n}$", played.text, re.MULTILINE), played.text
    assert "restarted in its pod (OnFailure)" in played.text
    assert "Succeeded: " in played.text
    assert "any one worker's success" in played.text
    assert nothing_is_left(engine, played)


def test_an_interrupted_play_leaves_nothing_behind(
    play: Callable[[dict[str, Any]], Played], engine: Any
) -> None:
    played = play(job(WAIT))
    played.until(lambda text: text.count("] up") == 3)
    played.process.send_signal(signal.SIGTERM)
    assert played.end() == 130, played.text
    assert nothing_is_left(engine, played)


def test_an_image_that_is_not_there_is_told_before_anything_is_left(
    play: Callable[[dict[str, Any]], Played], engine: Any
) -> None:
    manifest = job(ENDS_AT_ONCE)
    master = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    master["image"] = "example.invalid/none:1"
    played = play(manifest)
    assert played.end() == 3
    assert "docker pull example.invalid/none:1" in played.text
    assert "Traceback" not in played.text
    assert nothing_is_left(engine, played)


def test_the_pods_stdout_goes_to_stdout_and_everything_else_to_stderr(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    program = "import os, sys; print('out'); print('err', file=sys.stderr)"
    path.write_text(json.dumps(job(program)))
    done = run_program(
        [sys.executable, "-m", "launcher", "play", str(path)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=LIMIT_S,
    )
    pods = ("master-0", "worker-0", "worker-1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{pod}] out" for pod in pods]
    lines = done.stderr.splitlines()
    assert {f"[{pod}] err" for pod in pods} <= set(lines)
    assert lines[-1].startswith("launcher: Succeeded")
