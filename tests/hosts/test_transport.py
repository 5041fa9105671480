"""What a worker prints comes back byte for byte, whatever becomes of the connections."""

from __future__ import annotations

import os
import time

import pytest

from tests.hosts.places import Network, sh, wait_until
from tests.hosts.typist import Typist

pytestmark = pytest.mark.hosts

COUNTING = """
import os, sys, time
for i in range(250):
    print(f"{os.environ['RANK']} line {i}", flush=True)
    time.sleep(0.05)
"""


def test_no_line_is_lost_or_doubled_when_connections_break(typist: Typist) -> None:
    typist.write(COUNTING)
    launcher = typist.start("run", "job.yaml", "--nnodes", "2")
    host = typist.network.hosts[1]
    files = lambda: list(host.home.glob(".launcher/runs/*/nodes/1/**/stdout*"))  # noqa: E731
    wait_until(lambda: any(f.stat().st_size > 100 for f in files()), 90)
    for _ in range(2):
        # The host's end of every connection is killed: sshd's children, not its listener.
        for pid in host.pids():
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if line.read().startswith(b"sshd: root"):
                    os.kill(pid, 9)
        time.sleep(3)
    assert launcher.wait(120) == 0
    shown = typist("logs", "latest").stdout.splitlines()
    for rank in (0, 1):
        own = [line for line in shown if line.startswith(f"[{rank}/{rank}] {rank} line ")]
        assert own == [f"[{rank}/{rank}] {rank} line {i}" for i in range(250)]


@pytest.mark.slow  # ssh's own option, in people's configuration
def test_a_host_behind_another_is_reached_by_a_jump(typist: Typist, four_hosts: Network) -> None:
    config = typist.folder / "ssh_config"
    text = four_hosts.ssh_config.read_text()
    config.write_text(f"Host gpu2\n  ProxyJump gpu1\n{text}")
    config.chmod(0o600)
    # From here no way leads to it but the jump.
    host = four_hosts.hosts[1]
    sh("ip", "route", "add", "blackhole", f"{host.address}/32")
    try:
        inventory = typist.folder / "hosts.yaml"
        inventory.write_text(inventory.read_text().replace(str(four_hosts.ssh_config), str(config)))
        typist.write("import torch.distributed as d; d.init_process_group('gloo'); d.barrier()")
        done = typist("run", "job.yaml", "--nnodes", "2")
        assert done.returncode == 0, done.stderr
    finally:
        sh("ip", "route", "del", "blackhole", f"{host.address}/32")
