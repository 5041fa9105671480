"""What is made around a run, and what is done to one that is ready. Rows name these functions.

Those of the first kind are given the project's folder and the bed, and give variables for whoever
types the command; those of the second kind are given the command that runs (``making.Started``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.contract.protocol import LABEL_NODE_INDEX, LABEL_RUN_ID, NODE_INDEX, RUN_ID
from launcher.targets import process_table
from tests.disks import mounted
from tests.launcher.fake_cluster import ended, pod
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.faults.beds import Bed
    from tests.faults.making import Started

ROOT = Path(__file__).parents[2]
NOBODY = 65534
INDEX = "batch.kubernetes.io/job-completion-index"


# -- around a run -------------------------------------------------------------------------------
@contextmanager
def small_disk(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """A disk of 1 MiB at ``disk``."""
    with mounted(project / "disk", "size=1m"):
        yield {}


@contextmanager
def read_only_disk(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    with mounted(project / "disk", "size=1m,ro"):
        yield {}


@contextmanager
def disk_of_few_inodes(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    with mounted(project / "disk", "size=1m,nr_inodes=12"):
        yield {}


@contextmanager
def small_shm(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """A /dev/shm of 2 MiB, for the command alone."""
    mount = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"'
    yield {"COMMAND_PREFIX": f"unshare --mount sh -c '{mount}' sh"}


@contextmanager
def without_capabilities(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """As root in most containers: files of others and limits hold; ``secret.bin`` is another's."""
    (project / "secret.bin").write_bytes(bytes(8))
    (project / "secret.bin").chmod(0o600)
    os.chown(project / "secret.bin", NOBODY, NOBODY)
    lost = ("dac_override", "dac_read_search", "sys_resource", "sys_admin")
    yield {"COMMAND_PREFIX": f"setpriv --bounding-set={','.join(f'-{name}' for name in lost)}"}


@contextmanager
def taken_port(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """A port that somebody else listens on, as the variable PORT."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {"PORT": str(listener.getsockname()[1])}


@contextmanager
def busy_queue(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """Other jobs hold all nodes of the Slurm cluster, or wait for them."""
    for _ in range(2):
        bed.at.submit("--nodes=3", "--exclusive", script="sleep 600\n")
    yield {}


@contextmanager
def busy_nodes(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """Another job holds all nodes of the Slurm cluster."""
    bed.at.submit("--nodes=3", "--exclusive", script="sleep 600\n")
    yield {}


@contextmanager
def free_port(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield {"PORT": str(port)}


@contextmanager
def late_clock(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """The first host's sessions have a clock that is a minute late."""
    source, library = ROOT / "tests/launcher/agent/skewed_clock.c", project.parent / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    bed.at.hosts[0].set_session_env(LD_PRELOAD=str(library), CLOCK_SKEW_S="-60")
    yield {}


@contextmanager
def without_python(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """The inventory names another Python than there is."""
    inventory = project / "hosts.yaml"
    inventory.write_text(inventory.read_text().replace(sys.executable, "/opt/conda/bin/python"))
    yield {}


@contextmanager
def without_rights(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """The user may look at jobs and not create them."""
    bed.at.denied |= {("create", "jobs"), ("patch", "jobs")}
    yield {}


@contextmanager
def without_server(project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """Every connection to the API server breaks."""
    bed.at.away = True
    yield {}


# -- to a run that is ready ---------------------------------------------------------------------
def interrupt(started: Started) -> None:
    """Ctrl-C at the terminal."""
    os.killpg(started.process.pid, signal.SIGINT)


def stop(started: Started) -> None:
    """``launcher stop``; with torchrun, SIGTERM."""
    if list(started.project.glob("runs/*/plan.json")):
        argv = [sys.executable, "-m", "launcher", "stop", "latest", "--runs", "runs"]
        subprocess.run(argv, cwd=started.project, check=True, capture_output=True)
    else:
        started.process.terminate()


def kill_launcher(started: Started) -> None:
    """SIGKILL; its nodes' agents end with it."""
    started.process.kill()
    started.process.wait()


def kill_node(started: Started) -> None:
    """All processes of node 1 at once."""
    pids = process_table.find(**{RUN_ID: started.run_id, NODE_INDEX: "1"})
    assert pids, "node 1 has no process"
    process_table.send(pids, signal.SIGKILL)


def look_at_stacks(started: Started) -> None:
    """``launcher stacks``: what its agents see is kept in the run's folder."""
    argv = [sys.executable, "-m", "launcher", "stacks", "latest", "--runs", "runs"]
    subprocess.run(argv, cwd=started.project, check=True, capture_output=True)


# Docker


def node_of(started: Started, index: int) -> Any:
    """The container of a node."""
    labels = [f"{LABEL_RUN_ID}={started.run_id}", f"{LABEL_NODE_INDEX}={index}"]
    return started.bed.at.containers.list(filters={"label": labels})[0]


def kill_container(started: Started) -> None:
    """Of node 1, by ``docker kill``."""
    node_of(started, 1).kill()


def freeze_container(started: Started) -> None:
    node_of(started, 1).pause()


def unplug_container(started: Started) -> None:
    """Node 1 leaves the run's network."""
    container = node_of(started, 1)
    for name in container.attrs["NetworkSettings"]["Networks"]:
        started.bed.at.networks.get(name).disconnect(container, force=True)


# Hosts


def power_off(started: Started) -> None:
    started.bed.at.hosts[1].power_off()


def part_hosts(started: Started) -> None:
    """The two hosts do not reach each other any more; ssh reaches both."""
    first, second = started.bed.at.hosts
    for host, other in ((first, second), (second, first)):
        host.run("ip", "route", "add", "blackhole", f"{other.address}/32")


# Slurm


def kill_slurm_node(started: Started) -> None:
    started.bed.at.kill_node("n2")


def cancel(started: Started) -> None:
    """``scancel``, by the user or an administrator."""
    started.bed.at.ask("scancel", "--user=root")


def preempt(started: Started) -> None:
    """A job of a higher partition takes all nodes."""
    words = ("--partition=high", "--nodes=3", "--exclusive", "--time=1")
    started.bed.at.submit(*words, script="sleep 20\n")


# The Kubernetes test server


def put(started: Started, index: int, **fields: Any) -> Any:
    """A pod of the run, as its controller and the kubelet report it."""
    server, run_id = started.bed.at, started.run_id
    server.until(lambda: any(kind.endswith("jobs") for kind, _ in server.objects))
    labels = {LABEL_RUN_ID: run_id, INDEX: str(index)}
    return server.put("pods", pod(f"{run_id}-{index}-x7k2p", labels, **fields))


def put_both_waiting(started: Started, reason: str, message: str) -> None:
    for index in (0, 1):
        state = {"waiting": {"reason": reason, "message": message}}
        put(started, index, phase="Pending", state=state)


def fail_job(started: Started, **fields: str) -> None:
    """What its controller says of the job when all is over."""
    server = started.bed.at
    key = next(key for key in server.objects if key[0] == "jobs")
    server.objects[key]["status"] = {"conditions": [{"type": "Failed", "status": "True", **fields}]}
    server.put("jobs", server.objects[key])
    for kind, name in list(server.objects):
        if kind == "pods":
            server.log(name, ended=True)


def no_image(started: Started) -> None:
    words = 'failed to pull "registry.example/team/train:7": manifest unknown'
    put_both_waiting(started, "ImagePullBackOff", words)


def no_place(started: Started) -> None:
    words = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for index in (0, 1):
        put(started, index, phase="Pending", conditions=[{**condition, "message": words}], state={})


def no_mount(started: Started) -> None:
    """Both pods wait for a volume that cannot be mounted, until the job's deadline."""
    told = "MountVolume.SetUp failed"
    for index in (0, 1):
        state = {"waiting": {"reason": "ContainerCreating"}}
        name = put(started, index, phase="Pending", state=state)["metadata"]["name"]
        words = f'{told} for volume "data" : mount failed: exit status 32'
        started.bed.at.event("Pod", name, "FailedMount", words)
    wait_until(lambda: told in started.told(), started.told)
    fail_job(started, reason="DeadlineExceeded", message="Job was active longer than its deadline")


def no_quota(started: Started) -> None:
    """No pod is made: what the controller tells is an event of the job."""
    server = started.bed.at
    server.until(lambda: any(kind == "jobs" for kind, _ in server.objects))
    words = 'pods "x" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8, used: 8'
    server.event(
        "Job", next(name for kind, name in server.objects if kind == "jobs"), "FailedCreate", words
    )


def no_secret(started: Started) -> None:
    words = 'secret "registry-token" not found'
    put_both_waiting(started, "CreateContainerConfigError", words)


def out_of_memory(started: Started) -> None:
    put(started, 0)
    put(started, 1, phase="Failed", state=ended(137, "OOMKilled"))
    fail_job(started, reason="BackoffLimitExceeded")


def evict(started: Started) -> None:
    words = "Preempted by pod team-b/train-0 on node gpu-17"
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    condition = [{**disrupted, "message": words}]
    put(started, 0)
    put(started, 1, phase="Failed", state=ended(143), conditions=condition)
    fail_job(started, reason="PodFailurePolicy", message="pod was preempted")


def lose_kubelet(started: Started) -> None:
    words = "Taint manager: deleting due to NoExecute taint node.kubernetes.io/unreachable"
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    put(started, 0, phase="Failed", state=ended(143), reason="NodeLost",
        conditions=[{**disrupted, "message": words}])  # fmt: skip
    put(started, 1)
    fail_job(started, reason="BackoffLimitExceeded")


def print_and_fail(started: Started) -> None:
    """Pod 1 prints a traceback and ends with code 1; its agent's outcome is lost."""
    name = put(started, 1)["metadata"]["name"]
    put(started, 0)
    lines = (
        "[1/1] [rank1]: Traceback (most recent call last):",
        '[1/1] [rank1]:   File "/code/train.py", line 61, in <module>',
        "[1/1] [rank1]:     loss = criterion(model(images), labels)",
        "[1/1] [rank1]: ValueError: Target 1000 is out of bounds.",
    )
    started.bed.at.log(
        name, *((f"2026-01-01T00:00:{at:02d}Z", line) for at, line in enumerate(lines))
    )
    put(started, 1, phase="Failed", state=ended(1))
    fail_job(started, reason="BackoffLimitExceeded")


def no_program(started: Started) -> None:
    words = 'exec: "python3": executable file not found in $PATH: unknown'
    state = ended(128, "StartError", message=f"failed to create containerd task: {words}")
    for index in (0, 1):
        put(started, index, phase="Failed", state=state)
    fail_job(started, reason="PodFailurePolicy", message="exit code 128")
