"""Types ``launcher`` on this machine, for runs on test hosts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.contract.process_stat import parent_of
from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.targets import process_table
from launcher.targets.hosts.program.processes import KEEPER
from tests.hosts.places import Host, Network
from tests.launcher.runner import Runner
from tests.waiting import wait_until

PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nhosts: {runtime: python}\n"
LEFT_BEHIND_LIMIT_S = 60.0
STATE = "/root/.launcher"


class Typist(Runner):
    """A folder with a job and an inventory of the network's hosts."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network = network
        self.started: list[subprocess.Popen[bytes]] = []
        inventory = {
            "ssh_config": str(network.ssh_config),
            "defaults": {"python": sys.executable},
            "hosts": [host.name for host in network.hosts],
        }
        (folder / "hosts.yaml").write_text(json.dumps(inventory, indent=1))
        self.env |= {"LAUNCHER_HOSTS": "hosts.yaml"}

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        self.started.append(super().start(*argv))
        return self.started[-1]

    def write(self, script: str, job: str = "", prefix: str = PREFIX) -> None:
        super().write(script, prefix + job)

    def left(self) -> dict[str, list[str]]:
        """What is still on the hosts: processes, listening ports, containers, leases, files.

        Of runs alone, and whosever: one test runs at a time, and each leaves nothing.
        """
        found = {host.name: left_on(host) for host in self.network.hosts}
        return {name: held for name, held in found.items() if held}

    def assert_nothing_left(self) -> None:
        wait_until(
            lambda: not self.left(), lambda: f"{self.left()} are left", limit_s=LEFT_BEHIND_LIMIT_S
        )

    def sweep(self) -> None:
        """Ends and removes all there is, by force."""
        for launcher in self.started:
            launcher.kill()
        for host in self.network.hosts:
            if host.has_engine and (ids := host.docker("ps", "--all", "--quiet").split()):
                host.docker("rm", "--force", *ids)
            host.reboot()
            host.run("rm", "-rf", f"{STATE}/runs", f"{STATE}/checkpoints")


def kill_node(run_id: str, index: int) -> None:
    """The first process of a node, which its keeper has started."""
    found = process_table.find(**{RUN_ID: run_id, NODE_INDEX: str(index)})
    keepers = [pid for pid in found if process_table.variable_of(pid, KEEPER)]
    (first,) = (pid for pid in found if parent_of(pid) in keepers)
    os.kill(first, signal.SIGKILL)


@contextmanager
def typing_on(network: Network, folder: Path) -> Iterator[Typist]:
    """``launcher`` typed for these hosts, on which it may leave nothing."""
    typist = Typist(folder, network)
    yield typist
    try:
        typist.assert_nothing_left()
    except AssertionError:
        # One that failed must not make all others fail.
        typist.sweep()
        raise


def left_on(host: Host) -> list[str]:
    """What one host still holds that a run brought there."""
    shared = host.run("ls", "-A", "/dev/shm").split()
    containers = host.docker("ps", "--all", "--quiet").split() if host.has_engine else []
    return [*host.commands(), *host.listening(), *shared, *containers, *files_on(host)]


def files_on(host: Host) -> list[str]:
    """Files of runs, and of the launcher what is not kept for the next run."""
    folders = [f"{STATE}/runs", f"{STATE}/checkpoints", host.tmp]
    # torch keeps one cache for all that a user runs.
    others = ("-name", "torchinductor_*", "-prune", "-o", "-print")
    found = host.run("find", *folders, "-mindepth", "1", *others, check=False)
    # A name with a process id is a file or folder that somebody was about to rename.
    kept = (f"{STATE}/bin", f"{STATE}/code", "-maxdepth", "1")
    found += host.run("find", *kept, "-regex", r".*\.[0-9]+", check=False)
    return found.split()
