"""Runs on real hosts in containers of the hosts' own engines."""

from __future__ import annotations

import time

import pytest

from tests.conftest import DOCKER_IMAGE
from tests.hosts.claims.test_run_docker import PREFIX, images_loaded
from tests.hosts.claims.test_run_python import WHO

pytestmark = [pytest.mark.hosts, pytest.mark.docker, pytest.mark.timeout(600)]


def test_two_hosts_train_together_in_containers(typist, four_engines):
    script = typist.folder / "train.py"
    # Another test may have brought it already.
    four_engines.hosts[1].docker("image", "rm", "--force", DOCKER_IMAGE)
    began = time.time()
    # The image holds no such script: it comes by a mount, as data do.
    mount = f"mounts: ['{typist.folder}:/code:ro']\nworkdir: /code\n"
    typist.write(WHO, prefix=PREFIX + mount)
    assert script.exists()
    first = four_engines.hosts[0].docker("image", "inspect", "-f", "{{.Id}}", DOCKER_IMAGE)
    typist.limit_s = 400.0
    done = typist.well("run", "job.yaml", "--nnodes", "2")
    assert "rank 0" in done.stdout
    assert "[1/1] world" in done.stdout
    second = four_engines.hosts[1].docker("image", "inspect", "-f", "{{.Id}}", DOCKER_IMAGE)
    assert first == second
    for host in four_engines.hosts[:2]:
        assert host.docker("ps", "--all", "--quiet") == ""
    assert images_loaded(four_engines.hosts[1], began) == 1
