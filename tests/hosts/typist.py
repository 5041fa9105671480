"""Types ``launcher`` on this machine, for runs on test hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.hosts.places import Network, wait_until
from tests.launcher.runner import Runner

PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\nhosts: {runtime: python}\n"
LEFT_BEHIND_LIMIT_S = 20.0


class Typist(Runner):
    """A folder with a job and an inventory of the network's hosts."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network = network
        inventory = {
            "ssh_config": str(network.ssh_config),
            "defaults": {"python": sys.executable},
            "hosts": [host.name for host in network.hosts],
        }
        (folder / "hosts.yaml").write_text(json.dumps(inventory, indent=1))
        self.env |= {"LAUNCHER_HOSTS": "hosts.yaml"}

    def write(self, script: str, job: str = "", prefix: str = PREFIX) -> None:
        super().write(script, prefix + job)

    def left(self) -> dict[str, list[str]]:
        """What hosts still hold of this folder's runs: processes, leases, files."""
        found: dict[str, list[str]] = {}
        for host in self.network.hosts:
            for run_id in self.run_ids():
                lines = [line for line in host.commands() if "_limit" not in line]
                leases = host.run("sh", "-c", "ls /dev/shm/launcher-leases 2>/dev/null; true")
                files = [str(p) for p in host.home.glob(f".launcher/runs/{run_id}/**/*")]
                held = [*lines, *(x for x in leases.split() if run_id in x), *files]
                if held:
                    found[host.name] = held
        return found

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.left(), LEFT_BEHIND_LIMIT_S, str(self.left()))
