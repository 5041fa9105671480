"""The machines that ``hosts`` measures on: those that ``LAUNCHER_HOSTS`` names, else test hosts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import BenchmarkError

TEST_HOSTS = 4
TEST_NAMES = 128


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What ``--hosts`` is given, for runs and for sessions to ``many`` hosts."""

    given: str
    many: str


@contextmanager
def find_machines() -> Iterator[Machines]:
    """Test hosts are network namespaces here, each with an sshd.

    Many of them are several addresses of each: one that shares connections shares none of these.
    """
    if given := os.environ.get("LAUNCHER_HOSTS"):
        yield Machines(given=given, many=given)
        return
    # Only where they are asked for: tests are no part of an installation.
    from tests.conftest import why_no_hosts
    from tests.hosts.places import HOME, Network

    if reason := why_no_hosts():
        raise BenchmarkError(f"there is {reason}; or name machines: export LAUNCHER_HOSTS=FILE")
    folder = Path(tempfile.mkdtemp(prefix="lt", dir="/tmp"))
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    network = Network(folder / "hosts", TEST_HOSTS)
    try:
        network.make()
        for host in network.hosts:
            # This machine's own, by which a shell may take longer to start than all of ssh.
            host.run("rm", "-f", f"{HOME}/.bashrc")
        paths = []
        for names in ([host.name for host in network.hosts], network.add_names(TEST_NAMES)):
            inventory = {
                "ssh_config": str(network.ssh_config),
                "defaults": {"python": sys.executable},
                "hosts": names,
            }
            paths.append(folder / f"hosts{len(names)}.yaml")
            paths[-1].write_text(json.dumps(inventory))
        yield Machines(given=str(paths[0]), many=str(paths[1]))
    finally:
        network.remove()
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("XDG_RUNTIME_DIR")
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before
