"""``launcher node``, started by hand and by a real mpirun, as real processes."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.addresses import LOOPBACK, interface_of, own_addresses
from tests.launcher.runner import Runner
from tests.waiting import wait_until

SUM = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), "of node", os.environ["LAUNCHER_NODE_INDEX"], flush=True)
left = [name for name in os.environ if name.startswith(("OMPI_", "PMIX_"))]
print("left", left, "by", os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
dist.destroy_process_group()
"""
JOB = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 5\n"
LAUNCHER = """\
#!/bin/sh
exec {python} -m launcher "$@"
"""
REMOTE = """\
#!/bin/sh
# HOST COMMAND...: as ssh would, on this machine; each host has a folder for its sessions.
mkdir -p "$PWD/tmp-$1" && export TMPDIR="$PWD/tmp-$1"
shift
exec /bin/sh -c "$*"
"""


class Starting:
    """Starts ``launcher node`` on nodes that are all this machine."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Runner(folder)
        self.launcher.write(SUM, JOB)
        self.started: list[subprocess.Popen[str]] = []
        for name, text in (("launcher", LAUNCHER), ("remote", REMOTE)):
            path = folder / name
            path.write_text(text.format(python=shlex.quote(self.launcher.argv()[0])))
            path.chmod(0o755)
        others = ("SLURM_", "OMPI_", "PMI", "PBS_")
        self.env = {k: v for k, v in self.launcher.env.items() if not k.startswith(others)}

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            cwd=self.launcher.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def node(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return self.start("./launcher", "node", *words, **env)

    def mpirun(self, nodes: int, *words: str, **env: str) -> subprocess.Popen[str]:
        hosts = ",".join(f"n{number}" for number in range(nodes))
        argv = ("mpirun", "--allow-run-as-root", "--host", hosts, "-N", "1")
        remote = str(self.launcher.folder / "remote")
        return self.start(*argv, "--mca", "plm_rsh_agent", remote, "./launcher", *words, **env)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=60)
        wait_until(lambda: self.launcher.processes() == [])


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    starting = Starting(tmp_path)
    yield starting
    starting.end()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


@pytest.mark.mpi
def test_mpirun_that_starts_several_on_a_node_is_an_error_of_each(starting):
    argv = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
    code, _, err = finish(starting.start(*argv, "./launcher", "node", "job.yaml"))
    assert code == 2
    assert "mpirun started 2 processes on this node" in err
    assert "fix: start one on each node: mpirun -N 1" in err


def test_the_interface_of_an_address_is_known_but_for_the_loopback():
    for address in own_addresses():
        assert interface_of(address)
    assert interface_of(LOOPBACK) == ""
    assert interface_of("203.0.113.7") == ""
    assert interface_of("a-name") == ""
