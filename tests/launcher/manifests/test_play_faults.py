"""What real clusters do to a job, played in real containers, in the words of ``launcher run``."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import ExitCode
from tests.launcher.played import (
    LIMIT_S,
    ROOT,
    WAIT,
    Played,
    container,
    elastic,
    job,
    nothing_is_left,
    plays,
)

pytestmark = pytest.mark.docker

Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    with plays(tmp_path) as start:
        yield start


@pytest.fixture
def engine() -> Any:
    import docker

    return docker.from_env()


# -- programs that do not start, and how those end that did ---------------------------------------


def test_a_program_that_is_not_in_the_image_ends_the_play_at_once(play: Play, engine: Any) -> None:
    manifest = elastic(WAIT)
    spec = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["command"] = ["python9"]
    played = play(manifest)
    assert played.end() == ExitCode.BAD_INPUT, played.text
    assert re.search(
        r"^error: foreign-worker-[01]: StartError: failed to create", played.text, re.M
    )
    assert 'exec: "python9": executable file not found' in played.text
    assert "fix: correct the container's command, or --image REF" in played.text
    assert nothing_is_left(engine, played)


def test_a_pod_that_is_deleted_fails_a_job_whose_policy_is_never(play: Play, engine: Any) -> None:
    played = play(elastic(WAIT, "Never"))
    played.until(lambda text: text.count("] up") == 2)
    container(engine, "worker-0").remove(force=True)
    assert played.end() == ExitCode.TRAINING_FAILED, played.text
    assert (
        "foreign-worker-0 ended with 137, SIGKILL (9), which Never does not restart" in played.text
    )
    assert nothing_is_left(engine, played)


# -- what is typed --------------------------------------------------------------------------------


def test_the_command_that_shows_the_output_is_the_one_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "job file.yaml").write_text(json.dumps(job("print('out')")))
    words = ["play", "job file.yaml", "--job", "foreign", "--image", "fabric-train:cpu"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "its output: " in line]
    typed = shlex.split(line.partition("its output: ")[2])
    assert typed == [*shlex.split("python -m launcher"), *words, ">", "FILE"]
