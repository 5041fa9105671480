"""``launcher play`` of the manifests that this project ships, in real containers."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from launcher.manifests.player import LABEL
from launcher.targets.agent_archive import read_agent_version
from tests.k8s.claims.test_play_job import LIMIT_S, accuracy, play
from tests.launcher.docker_place import OTHER_AGENT, OTHER_AGENT_IMAGE, build_other_agent

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1000)]


def containers(name: str) -> list[Any]:
    import docker

    found = docker.from_env().containers.list(filters={"label": LABEL}, ignore_removed=True)
    return [c for c in found if re.fullmatch(rf"digits-[0-9a-f]{{6}}-{name}", c.name)]


def test_an_image_with_another_agent_ends_the_job_with_both_versions_and_the_fix(tmp_path):
    build_other_agent()
    output = tmp_path / "output"
    process = play("k8s/job.yaml", output, OTHER_AGENT_IMAGE)
    assert process.wait(LIMIT_S) == 1
    text = output.read_text()
    assert f"the image holds agent {OTHER_AGENT}" in text
    assert f"this manifest was made for {read_agent_version()}" in text
    assert "fix: build the image again" in text
    assert "ended with 2" in text
    assert "is replaced by a new pod" not in text


def test_the_elastic_one_goes_on_when_a_worker_is_killed(tmp_path):
    output = tmp_path / "output"
    process = play("k8s/job.yaml", output)
    deadline = time.monotonic() + LIMIT_S
    while "epoch 3/" not in output.read_text():
        assert time.monotonic() < deadline, output.read_text()[-3000:]
        assert process.poll() is None, output.read_text()[-3000:]
        time.sleep(0.2)
    (worker,) = containers("worker-1")
    worker.kill()
    assert process.wait(LIMIT_S) == 0, output.read_text()[-3000:]
    text = output.read_text()
    assert "digits-worker-1 is replaced by a new pod (ExitCode)" in text
    assert accuracy(text) >= 0.97
