"""``launcher play`` in real containers: foreign manifests, faults, and what is left."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.contract.errors import ExitCode
from tests.launcher.played import (
    ENDS_AT_ONCE,
    LIMIT_S,
    ROOT,
    WAIT,
    container,
    elastic,
    job,
    nothing_is_left,
)
from tests.programs import run_program

pytestmark = pytest.mark.docker


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


def test_a_program_that_is_not_in_the_image_ends_the_play_at_once(play, engine):
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


def test_a_pod_that_is_deleted_fails_a_job_whose_policy_is_never(play, engine):
    played = play(elastic(WAIT, "Never"))
    played.until(lambda text: text.count("] up") == 2)
    container(engine, "worker-0").remove(force=True)
    assert played.end() == ExitCode.TRAINING_FAILED, played.text
    assert (
        "foreign-worker-0 ended with 137, SIGKILL (9), which Never does not restart" in played.text
    )
    assert nothing_is_left(engine, played)


def test_the_command_that_shows_the_output_is_the_one_that_was_typed(tmp_path):
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
