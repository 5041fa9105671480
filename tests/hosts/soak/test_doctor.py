"""``doctor`` on real hosts: containers, and a network that is slow for one of them."""

import subprocess

import pytest

from tests.conftest import DOCKER_IMAGE
from tests.hosts.claims.test_doctor import diagnosed, done_and_undone

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]
IN_DOCKER = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nhosts: {runtime: docker}\n"


@pytest.mark.docker
def test_containers_tell_what_is_in_them_and_an_image_that_is_missing_is_told(typist, four_engines):
    first, second = four_engines.hosts[:2]
    image = f"docker --host unix://{first.folder}/docker.sock save {DOCKER_IMAGE}"
    load = f"docker --host unix://{second.folder}/docker.sock load -q"
    subprocess.run(["sh", "-c", f"{image} | {load}"], check=True)
    typist.write("", f"image: {DOCKER_IMAGE}\nnnodes: 2\nengine: agent\n", prefix=IN_DOCKER)
    typist.limit_s = 300.0
    code, rows = diagnosed(typist, "--include", "gpu1,gpu2")
    found = {(row["check"], row["where"]): row for row in rows}
    assert code == 0, rows
    assert found["image", "gpu2"]["status"] == "ok"
    assert "torch 2." in found["python, torch", "gpu2"]["found"]
    assert found["all-reduce", "2 x 1"]["status"] == "ok"
    second.docker("image", "rm", "--force", DOCKER_IMAGE)
    code, rows = diagnosed(typist, "--include", "gpu1,gpu2")
    found = {(row["check"], row["where"]): row for row in rows}
    assert found["image", "gpu2"]["status"] == "warning"
    assert f"docker save {DOCKER_IMAGE} | ssh " in found["image", "gpu2"]["fix"]
    assert " gpu2 docker load" in found["image", "gpu2"]["fix"]
    assert found["all-reduce", "2 hosts"]["found"] == "not tried"
    for host in (first, second):
        assert host.docker("ps", "--all", "--quiet") == ""


# -- networks that are slow, or swallow what is large ---------------------------------------------


@pytest.mark.parametrize(
    ("do", "undo"),
    [
        ("tc qdisc add dev eth0 root tbf rate 80mbit burst 64kb latency 200ms",
         "tc qdisc del dev eth0 root"),
        ("iptables -A OUTPUT -p tcp ! --sport 22 -m length --length 1400: -j DROP",
         "iptables -D OUTPUT -p tcp ! --sport 22 -m length --length 1400: -j DROP"),
    ],
    ids=["a slow link", "large packets are lost"],
)  # fmt: skip
def test_the_host_that_makes_the_all_reduce_slow_is_named(typist, do, undo):
    typist.write("", "nnodes: 4\n")
    typist.limit_s = 350.0
    with done_and_undone(typist.network.hosts[2], do, undo):
        code, rows = diagnosed(typist, "--limit", "60")
    found = {(row["check"], row["where"]): row["status"] for row in rows}
    assert found["all-reduce of two", "gpu3"] == "failed", rows
    assert [
        k for k, status in found.items() if status == "failed" and k[0] == "all-reduce of two"
    ] == [("all-reduce of two", "gpu3")]
    assert code == 1
