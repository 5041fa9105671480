"""What a host's programs tell of it, and what its engine is asked: by stand-ins for these."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.errors import TargetError
from launcher.contract.process_stat import name_machine
from launcher.targets.hosts.nodes import Image, provide_image, read_image
from launcher.targets.hosts.program import facts, leases, requests
from launcher.targets.hosts.program.messages import Address, HostReport, Lease, RequestError
from launcher.targets.hosts.settings import Host

Docker = Callable[[str], Callable[[], list[str]]]
LABEL = '{{index . "launcher.torch-version"}}'
INSPECT = (
    f"docker image inspect --format {{{{.Id}}}} {{{{with .Config.Labels}}}}{LABEL}{{{{end}}}} a:1"
)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Makes a ``docker`` that does what shell words say, and gives what it was asked since."""
    log = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def make(does: str) -> Callable[[], list[str]]:
        program = tmp_path / "bin/docker"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\necho docker $* >>{log}\n{does}\n")
        program.chmod(0o755)

        def read() -> list[str]:
            lines = log.read_text().splitlines() if log.exists() else []
            log.unlink(missing_ok=True)
            return lines

        return read

    return make


IMAGES = """case "$1 $2" in
"image inspect") cat there ;;
"save a:1") [ -e unsaved ] && { echo no room >&2; exit 4; }; echo the image ;;
"load --quiet") [ -e unloaded ] && { echo denied >&2; exit 5; }; cat >loaded ;;
pull*) [ -e unknown ] && { echo first >&2; echo not found >&2; exit 1; }; echo sha256:aa >there ;;
esac"""
OWN = Image(name="a:1", id="sha256:aa")
BY_HAND = "docker save a:1 | ssh gpu1 docker load"


@pytest.mark.parametrize(
    ("image", "there", "fault", "asked", "why"),
    [
        (OWN, "sha256:aa", "", [], ""),
        (OWN, "", "", ["docker save a:1", "docker load --quiet"], ""),
        (OWN, "sha256:bb", "", ["docker save a:1", "docker load --quiet"], ""),
        (OWN, "", "unsaved", ["docker save a:1", "docker load --quiet"], "no room"),
        (OWN, "", "unloaded", ["docker save a:1", "docker load --quiet"], "denied"),
        (Image(name="a:1"), "sha256:bb", "", [], ""),
        (Image(name="a:1"), "", "", ["docker pull --quiet a:1", INSPECT], ""),
        (
            Image(name="a:1"),
            "",
            "unknown",
            ["docker pull --quiet a:1"],
            "gpu1: image a:1 could not be pulled: not found",
        ),
    ],
)
def test_a_host_gets_the_image_unless_it_has_it(
    docker, ssh, tmp_path, image, there, fault, asked, why
):
    read = docker(IMAGES)
    (tmp_path / "there").write_text(there)
    if fault:
        (tmp_path / fault).touch()
    host = Host(name="gpu1", state_dir=str(tmp_path / "state"))
    with ssh.open(host) as session:
        if why:
            with pytest.raises(TargetError) as error:
                provide_image(image, ssh, session)
            sent = f"gpu1: image a:1 could not be sent there: {why}"
            assert error.value.what == (sent if image.id else why)
            assert error.value.hint == BY_HAND or not image.id
        else:
            provide_image(image, ssh, session)
    assert sorted(read()) == sorted([INSPECT, *asked])
    if asked and image.id and not why:
        assert (tmp_path / "loaded").read_text() == "the image\n"


def test_an_image_here_is_told_with_the_torch_of_its_label(docker):
    docker("printf 'sha256:aa\\n2.9.0\\n'")
    assert read_image("a:1") == Image(name="a:1", id="sha256:aa", torch_version="2.9.0")
    docker("exit 1")
    assert read_image("a:1") == Image(name="a:1")


LIST = (
    "docker ps --all --no-trunc --filter label=launcher.run-id=r --format "
    '{{.ID}} {{.Label "launcher.node-index"}}'
)


@pytest.mark.parametrize(
    ("node", "removed"),
    [(None, "docker rm --force --volumes c0 c1"), (1, "docker rm --force --volumes c1"), (2, "")],
)
def test_containers_whose_keeper_is_gone_are_removed(docker, node, removed):
    read = docker("[ $1 != ps ] || printf 'c0 0\\nc1 1\\n'")
    requests.end_nodes("r", node, 0.0, in_containers=True)
    assert read() == [LIST, *filter(None, [removed])]
    requests.end_nodes("r", node, 0.0, in_containers=False)
    assert read() == []
    docker("exit 1")
    with pytest.raises(RequestError, match="the Docker engine does not answer: r may still run"):
        requests.end_nodes("r", node, 0.0, in_containers=True)


def read_here(folder: Path, **asked: Any) -> HostReport:
    given = {"state_dir": f"{folder}/a/../state", "lease_dir": f"{folder}/leases"}
    return facts.read_host(**{**given, "python": sys.executable, **asked})


def test_a_host_tells_what_it_has(docker, monkeypatch, tmp_path):
    names = ["lo", "no-such0", "docker0", "veth1", "no0"]
    monkeypatch.setattr("socket.if_nameindex", lambda: list(enumerate(names)))
    monkeypatch.setattr(facts, "addresses_of", lambda name: [f"10.0.0.{len(name)}", "fd00::1"])
    monkeypatch.setattr(facts, "read_gpus", lambda: ("0", "1"))
    monkeypatch.setattr(facts, "is_free", lambda port, address: (port, address) == (2, ""))
    lease = Lease(run_id="r", node_index=0, owner="me", gpus=["1"], slots=0)
    held = leases.acquire(f"{tmp_path}/leases", lease, None)
    told = read_here(tmp_path, ports=[1, 2, 3], gpus=False)
    (one,) = told.leases
    assert (one.run_id, one.gpus) == ("r", ("1",))
    leases.release(held)
    well = HostReport(
        machine=name_machine(),
        cpu_count=len(os.sched_getaffinity(0)),
        python=sys.executable,
        python_version=sys.version.split()[0],
        interfaces=[
            Address(interface=name, address=address)
            for name, first in (("no-such0", "10.0.0.8"), ("no0", "10.0.0.3"))
            for address in (first, "fd00::1")
        ],
        state_dir=f"{tmp_path}/state",
        user=f"{os.getuid()}:{os.getgid()}",
        free_ports=[2],
        leases=[one],
        has_rdma=any(Path("/dev/infiniband").glob("uverbs*")),
    )
    assert told == well
    engine = """case "$1" in
info) printf '27.1\\n{"runc": {}, "nvidia": {}}\\n' ;;
image) printf 'sha256:aa\\n2.9.0\\n' ;;
esac"""
    read = docker(engine)
    found = {"docker": "27.1", "runtimes": ["nvidia", "runc"], "image_id": "sha256:aa"}
    for asked, image, gpus in (
        ({"own_image": "own", "gpus": True}, "own:cuda", ("0", "1")),
        ({"own_image": "own", "gpus": False}, "own:cpu", ()),
        ({"image": "a:1"}, "a:1", ("0", "1")),
    ):
        told = read_here(tmp_path, runtime="docker", **asked)
        now = well.having(free_ports=[], leases=[], interfaces=told.interfaces, gpus=gpus)
        assert told == now.having(image=image, torch_version="2.9.0", **found)
        assert read()[1].endswith(f" {image}")
    docker("exit 1")
    told = read_here(tmp_path, runtime="docker", image="a:1")
    assert (told.docker, told.image, told.image_id, told.runtimes) == ("", "a:1", "", [])


def test_the_torch_of_a_hosts_python_is_told(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.9.0\n")
    python.chmod(0o755)
    for given, runtime, torch in (
        (str(python), "python", "2.9.0"),
        (str(python), "none", ""),
        ("/nowhere/python", "python", ""),
    ):
        told = read_here(tmp_path, python=given, runtime=runtime, gpus=False)
        assert (told.python, told.torch_version) == (given.replace("/nowhere/python", ""), torch)
    assert read_here(tmp_path, python=None).python.endswith("/python3")
