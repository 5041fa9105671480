"""The machines that ``hosts`` measures on: those that ``LAUNCHER_HOSTS`` names, else test hosts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import BenchmarkError

TEST_HOSTS = 4


@contextmanager
def find_machines() -> Iterator[str]:
    """What ``--hosts`` is given; test hosts are network namespaces here, each with an sshd."""
    if given := os.environ.get("LAUNCHER_HOSTS"):
        yield given
        return
    # Only where they are asked for: tests are no part of an installation.
    from tests.conftest import why_no_hosts
    from tests.hosts.places import Network

    if reason := why_no_hosts():
        raise BenchmarkError(f"there is {reason}; or name machines: export LAUNCHER_HOSTS=FILE")
    folder = Path(tempfile.mkdtemp(prefix="lt", dir="/tmp"))
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    network = Network(folder / "hosts", TEST_HOSTS)
    try:
        network.make()
        inventory = {
            "ssh_config": str(network.ssh_config),
            "defaults": {"python": sys.executable},
            "hosts": [host.name for host in network.hosts],
        }
        path = folder / "hosts.yaml"
        path.write_text(json.dumps(inventory))
        yield str(path)
    finally:
        network.remove()
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("XDG_RUNTIME_DIR")
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before
