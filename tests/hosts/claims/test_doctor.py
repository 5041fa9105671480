"""``doctor`` on real hosts: every planted fault is found, with the host that has it and the fix."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.targets.hosts.program.messages import Lease
from launcher.targets.hosts.settings import LEASE_DIR
from tests.hosts.places import Host, Network
from tests.hosts.typist import Typist

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]
CLOCK = Path(__file__).parents[2] / "launcher/agent/skewed_clock.c"
SKEW_S = 60
PORT = 23456
LEASE = Lease(
    run_id="other-0a1b2c", node_index=0, owner="anna@desk", gpus=["0", "1"], slots=0, detached=True
)
HOLDER = """
import json, sys
from launcher.targets.hosts.program import leases
from launcher.targets.hosts.program.messages import Lease
held = leases.acquire(sys.argv[1], Lease.from_json(json.loads(sys.argv[2])), None)
print("held", flush=True)
sys.stdin.read()
leases.release(held)
"""
SMI = """#!/bin/sh
case "$*" in
*query-gpu=index\\ *) printf '0\\n1\\n' ;;
*) for i in 0 1; do
    echo "$i, NVIDIA H200, 570.1, 0000000$i:3B:00.0, 1, 143771, 0"
done ;;
esac
"""
Row = dict[str, str]


def diagnosed(typist: Typist, *argv: str) -> tuple[int, list[Row]]:
    done = typist("doctor", "job.yaml", "--json", *argv)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# -- what is wrong with a host --------------------------------------------------------------------


@contextmanager
def at_login(host: Host, *lines: str) -> Iterator[None]:
    """What bash does before it runs what ssh asks for."""
    # Written from inside: a file that the host has looked at before is remembered there.
    text = shlex.quote("".join(f"{line}\n" for line in lines))
    with done_and_undone(host, f"printf %s {text} >/root/.bashrc", "rm /root/.bashrc"):
        yield


@contextmanager
def done_and_undone(host: Host, do: str, undo: str) -> Iterator[None]:
    host.run("sh", "-c", do)
    try:
        yield
    finally:
        host.run("sh", "-c", undo)


@contextmanager
def held(host: Host, **fields: Any) -> Iterator[None]:
    """By somebody else's run."""
    lease = LEASE.having(**fields)
    argv = [*host.enter(), sys.executable, "-c", HOLDER, LEASE_DIR, lease.to_json()]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


def skewed_clock(folder: Path) -> str:
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, CLOCK], check=True)
    return f"export LD_PRELOAD={library} CLOCK_SKEW_S={SKEW_S}"


def other_torch(folder: Path) -> str:
    metadata = folder / "site/torch-2.12.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0\n")
    return f"export PYTHONPATH={folder}/site"


def two_gpus(folder: Path) -> str:
    program = folder / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    return f"export PATH={program.parent}:$PATH"


@pytest.fixture(scope="module")
def sick(four_hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[Row]]:
    """All faults at once, on different hosts: the exit code, and the rows."""
    folder = tmp_path_factory.mktemp("sick")
    shared = folder / "shared"
    shared.mkdir()
    _, second, third, fourth = four_hosts.hosts
    rule = f"INPUT -s {second.address} -p tcp --syn -j DROP"
    typist = Typist(folder, four_hosts)
    typist.write("", f"nnodes: 4\nengine: torchrun\nrdzv: {{backend: c10d, port: {PORT}}}\n")
    with ExitStack() as stack:
        for fault in (
            at_login(second, skewed_clock(folder), other_torch(folder)),
            done_and_undone(third, f"iptables -A {rule}", f"iptables -D {rule}"),
            done_and_undone(
                third, "mount -o remount,size=64m /dev/shm", "mount -o remount,size=50% /dev/shm"
            ),
            at_login(fourth, two_gpus(folder)),
            done_and_undone(fourth, f"mount -t tmpfs t {shared}", f"umount {shared}"),
            held(fourth),
        ):
            stack.enter_context(fault)
        code, rows = diagnosed(typist, "--set", f"checkpoint_dir={shared}")
    assert list(shared.iterdir()) == []
    return code, rows


PLANTED = (
    ("clock", "gpu2", "failed", "+60", "timedatectl set-ntp true"),
    ("same torch", "gpu2", "failed", "has 2.12.0", "install torch"),
    (
        *("pair", "gpu2 -> gpu3", "failed"),
        *("gpu3 cannot be reached at an ephemeral port", "--dport 1024:65535 -j ACCEPT"),
    ),
    ("/dev/shm", "gpu3", "warning", "0.1 GiB", "mount -o remount,size=2G"),
    (
        *("leases", "gpu4", "failed"),
        *("held by anna@desk with other-0a1b2c", "launcher stop other-0a1b2c --hosts gpu4"),
    ),
    ("shared checkpoints", "gpu4", "failed", "is not the folder of the others", "mount"),
)


@pytest.mark.cc
def test_each_planted_fault_is_found_with_host_and_fix_and_no_other_and_no_run_is_tried(sick):
    code, rows = sick
    by_place = {(row["check"], row["where"]): row for row in rows}
    for check, where, status, found, fix in PLANTED:
        row = by_place[check, where]
        assert (row["status"], found in row["found"], fix in row["fix"]) == (status, True, True), (
            row
        )
    failed = {(check, where) for check, where, status, *_ in PLANTED if status == "failed"}
    assert {place for place, row in by_place.items() if row["status"] == "failed"} == failed
    assert (rows[-1]["check"], rows[-1]["found"]) == ("all-reduce", "not tried")
    assert code == 1


def test_two_sound_hosts_are_fit_and_nothing_is_left(typist):
    shared = typist.folder / "shared"
    typist.write("raise SystemExit('never run')", f"nnodes: 2\ncheckpoint_dir: {shared}\n")
    code, rows = diagnosed(typist, "--include", "gpu1,gpu2")
    assert code == 0, rows
    found = {(row["check"], row["where"]): row["found"] for row in rows}
    assert found["pairs", "all hosts"].startswith("2 ways")
    assert found["shared checkpoints", "all hosts"] == f"{shared} is one folder"
    assert found["all-reduce", "2 x 1"].startswith("gloo: ")
    assert list(shared.iterdir()) == []
    for host in typist.network.hosts:
        assert list(host.home.glob(".launcher/runs/*")) == []


def test_without_a_job_all_hosts_are_looked_at(typist):
    # A folder that no host can have: it is seen on each, and keeps the test from a run.
    given = ("--set", "hosts.runtime=python", "--set", "checkpoint_dir=/dev/null/none", "--json")
    done = typist("doctor", *given)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    names = [host.name for host in typist.network.hosts]
    for check, status in (("reachable", "ok"), ("checkpoint folder", "failed")):
        found = [(row["where"], row["status"]) for row in rows if row["check"] == check]
        assert found == [(name, status) for name in names]


def test_a_run_refuses_a_checkpoint_folder_that_hosts_do_not_share(typist):
    shared = typist.folder / "shared"
    shared.mkdir()
    typist.write("", f"nnodes: 2\ncheckpoint_dir: {shared}\n")
    second = typist.network.hosts[1]
    with done_and_undone(second, f"mount -t tmpfs t {shared}", f"umount {shared}"):
        done = typist("run", "job.yaml")
    assert done.returncode == 3
    assert f"gpu2: checkpoint_dir {shared} is not the folder of the other hosts" in done.stderr
