"""No node counts as lost at the default limit while CPUs starve, packets are lost and compiles run.

Ten minutes in `make soak`, an hour by ``make soak SOAK_S=3600``, 20 s where it is called alone.
"""

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from tests.launcher.docker_runs import MOUNTED, containers, has
from tests.waiting import wait_until

pytestmark = pytest.mark.docker
SOAK_S = float(os.environ.get("LAUNCHER_SOAK_S", "20"))
STARVING = 4
TRAINING = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
end = time.monotonic() + float(sys.argv[1])
open(f"{os.environ['RUN_DIR']}/up-{dist.get_rank()}", "w").close()
went_on = torch.ones(1)
step = 0
while went_on.item():
    step += 1
    if step % 40 == 0:
        # As a long compile: 8 s of this process' whole attention, on one rank after the other.
        pause_until = time.monotonic() + 8 * (dist.get_rank() == step // 40 % dist.get_world_size())
        while time.monotonic() < pause_until:
            pass
    went_on = torch.tensor([float(time.monotonic() < end)])
    dist.all_reduce(went_on, op=dist.ReduceOp.MIN)
    time.sleep(0.05)
if dist.get_rank() == 0:
    print("steps", step, flush=True)
dist.destroy_process_group()
"""


def starve(container: Any) -> None:
    """Busy processes beside the agent's, in the container: from outside they would only take
    their share as another group of processes, however many they are."""
    for _ in range(STARVING):
        container.exec_run(["python3", "-c", "while True: pass"], detach=True)


def lose_packets(container: Any, probability: float) -> None:
    """By a rule in the container's own network, which goes with it; not every kernel has netem."""
    container.reload()
    subprocess.run(
        [
            *("nsenter", "--net", "--target", str(container.attrs["State"]["Pid"])),
            *("iptables", "-A", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random"),
            *("--probability", str(probability), "-j", "DROP"),
        ],
        check=True,
    )


@pytest.mark.xdist_group("false losses")  # an hour beside all other tests, and not after them
@pytest.mark.timeout(SOAK_S + 600)
@pytest.mark.skipif(
    shutil.which("iptables") is None or os.getuid() != 0,
    reason="losing packets needs iptables and root",
)
def test_starved_cpus_lost_packets_and_long_compiles_are_no_lost_node(launcher, engine):
    launcher.write(TRAINING, MOUNTED)
    argv = ("--on", "docker", "--nnodes", "1:2", "--", str(SOAK_S))
    process = launcher.start("run", "job.yaml", *argv)
    wait_until(lambda: has(launcher, "up-0") and has(launcher, "up-1"))
    (run_id,) = launcher.run_ids()
    for container in containers(engine, run_id):
        lose_packets(container, 0.05)
        starve(container)
    _, stderr = process.communicate(timeout=SOAK_S + 300)
    assert process.returncode == 0, stderr.decode()
    assert launcher.outcome["restarts"] == {}
    assert launcher.outcome["attempts"] == 1
    worlds = {
        json.loads(line)["world_size"]
        for path in (launcher.folder / "runs/latest/ledger").glob("agent-*")
        for line in path.read_text().splitlines()
        if json.loads(line)["event"] == "rendezvous-ended"
    }
    assert worlds == {2}, "the group was never another one"
