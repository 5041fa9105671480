"""Runs on real hosts in containers of the hosts' own engines."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.places import Host

pytestmark = [pytest.mark.hosts, pytest.mark.docker, pytest.mark.timeout(600)]
TRAVELS = "fabric-train-tests:travels"
PREFIX = (
    "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nhosts: {runtime: docker}\nengine: agent\n"
)


@pytest.fixture
def empty_image(tmp_path: Path) -> Iterator[str]:
    """An image of this machine's engine, small enough to travel in no time."""
    (tmp_path / "file").touch()
    subprocess.run(["tar", "-cf", "layer.tar", "file"], cwd=tmp_path, check=True)
    argv = ("docker", "import", str(tmp_path / "layer.tar"), TRAVELS)
    subprocess.run(argv, check=True, capture_output=True)
    yield TRAVELS
    subprocess.run(("docker", "image", "rm", "--force", TRAVELS), check=False, capture_output=True)


def test_an_image_travels_once_to_a_host_that_lacks_it(typist, four_hosts, empty_image):
    host = four_hosts.hosts[1]
    if not host.has_engine:
        host.start_engine()
    began = time.time()
    typist.write("", prefix=f"{PREFIX}image: {empty_image}\n")
    for _ in range(2):
        done = typist("run", "job.yaml", "--nnodes", "1", "--include", host.name)
        assert done.returncode != 0, "the image has no Python"
        assert host.docker("image", "ls", "--quiet", empty_image), done.stderr
        assert images_loaded(host, began) == 1


def images_loaded(host: Host, since: float) -> int:
    """How often the host's engine was sent an image, by what it says itself."""
    argv = ("events", "--since", str(int(since)), "--until", str(int(time.time()) + 1))
    return len(host.docker(*argv, "--filter", "event=load").splitlines())
