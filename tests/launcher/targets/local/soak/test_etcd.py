"""A group that meets by somebody's etcd, through torch's own backend: plain start, and restart."""

import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.targets.local.target import find_free_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.etcd
FAILS_ONCE = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
failed = pathlib.Path(os.environ["RUN_DIR"], "failed")
if dist.get_rank() == 1 and not failed.exists():
    failed.touch()
    sys.exit(7)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """``HOST:PORT`` of a server of this test, by a name, because nodes may not share a loopback."""
    host = socket.gethostname()
    address = socket.gethostbyname(host)
    client, peer = find_free_ports(random.Random(), 2)
    with (tmp_path / "etcd.log").open("w") as log:
        server = subprocess.Popen(
            [
                *("etcd", "--enable-v2", "--data-dir", str(tmp_path / "etcd")),
                *("--listen-client-urls", f"http://{address}:{client}"),
                *("--advertise-client-urls", f"http://{address}:{client}"),
                *("--listen-peer-urls", f"http://{address}:{peer}"),
            ],
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((address, client)) == 0

    try:
        wait_until(answers)
        yield f"{host}:{client}"
    finally:
        server.kill()
        server.wait()


def test_a_group_meets_by_etcd_and_starts_again_after_a_failure(launcher, endpoint):
    launcher.write(FAILS_ONCE)
    done = launcher.well(
        *("run", "job.yaml", "--on", "local", "--nnodes", "2", "--max-restarts", "1"),
        *("--set", "rdzv.backend=etcd-v2", "--set", f"rdzv.endpoint={endpoint}"),
        *("--set", "engine=torchrun"),
    )
    assert done.stdout.count("sum 2.0") == 4
