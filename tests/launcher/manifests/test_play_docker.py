"""``launcher play`` in real containers: foreign manifests, restarts, losses, what is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.played import (
    ENDS_AT_ONCE,
    LIMIT_S,
    ROOT,
    WAIT,
    Played,
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


def test_an_interrupted_play_leaves_nothing_behind(play, engine):
    played = play(job(WAIT))
    played.until(lambda text: text.count("] up") == 3)
    played.process.send_signal(signal.SIGTERM)
    assert played.end() == 130, played.text
    assert nothing_is_left(engine, played)


def test_an_image_that_is_not_there_is_told_before_anything_is_left(play, engine):
    manifest = job(ENDS_AT_ONCE)
    master = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    master["image"] = "example.invalid/none:1"
    played = play(manifest)
    assert played.end() == 3
    assert "docker pull example.invalid/none:1" in played.text
    assert "Traceback" not in played.text
    assert nothing_is_left(engine, played)


def test_the_pods_stdout_goes_to_stdout_and_everything_else_to_stderr(tmp_path):
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
