"""Where ``again`` holds nodes, and what one types there without a hold."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import hosts_runs
from benchmarks import slurm as on_slurm
from benchmarks.commands import find_torchrun, free_port, read
from benchmarks.machines import find_machines
from benchmarks.measure import BenchmarkError
from benchmarks.own_script import IMAGE, ONE, in_container
from launcher.targets.hosts.inventory.inventory import read_inventory

NAME, SCRIPT = "again", "x.py"
NODES = 2


@dataclass(frozen=True, kw_only=True)
class Place:
    """``options`` are those of ``launcher hold``; ``by_hand`` prints what the script prints."""

    what: str
    options: tuple[str, ...]
    peer: str = ""
    by_hand: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def local(_folder: Path) -> Iterator[Place]:
    """One node of this machine."""
    yield Place(
        what="local",
        options=("--on", "local"),
        peer="torchrun",
        by_hand=(*find_torchrun(), "--standalone", *ONE, SCRIPT),
    )


@contextmanager
def docker(folder: Path) -> Iterator[Place]:
    """One container. Raises BenchmarkError without an engine, or without the image."""
    program = shutil.which("docker")
    if program is None:
        raise BenchmarkError("no program docker; fix: .ci/setup")
    read((program, "image", "inspect", IMAGE))
    yield Place(
        what="docker",
        options=("--on", "docker"),
        peer="docker run ... torchrun",
        by_hand=(program, "run", *in_container(str(folder)), SCRIPT),
    )


@contextmanager
def hosts(folder: Path) -> Iterator[Place]:
    """Two hosts of ``LAUNCHER_HOSTS``, or test hosts. Raises BenchmarkError without either."""
    with find_machines() as machines:
        inventory = read_inventory(machines.given)
        chosen = ",".join(host.name for host in inventory.hosts[:NODES])
        sent = f"/tmp/{folder.name}-{SCRIPT}"
        loop = hosts_runs.loop_over(inventory, (sent,), f"cat >{sent}", SCRIPT)
        yield Place(
            what=f"{NODES} hosts",
            options=(
                *("--hosts", machines.given, "--include", chosen, "--nnodes", str(NODES)),
                *("--set", "hosts.runtime=python"),
            ),
            peer="ssh ... torchrun",
            by_hand=loop,
        )


@contextmanager
def slurm(folder: Path) -> Iterator[Place]:
    """Two nodes of the tests' cluster. Raises BenchmarkError where none can be made."""
    with on_slurm.started_cluster() as cluster:
        script = on_slurm.SHORTEST.format(
            nodes=NODES,
            folder=folder,
            port=free_port(),
            command=shlex.quote(str(folder / SCRIPT)),
        )
        # The held nodes are shared: the cluster has three.
        (folder / "job.sh").write_text(script.replace(" --exclusive", ""))
        yield Place(
            what=f"slurm, {NODES} nodes",
            options=("--on", "slurm", "--nnodes", str(NODES)),
            peer="sbatch and srun",
            by_hand=("sh", "-c", "sbatch --wait job.sh >&2 && cat log"),
            environment=on_slurm.environment_of(cluster),
        )


@contextmanager
def kubernetes(folder: Path) -> Iterator[Place]:
    """Two pods: containers here, made for the API server of the tests."""
    # Only where they are asked for: tests are no part of an installation.
    from tests.conftest import why_no_docker, why_no_kubectl
    from tests.k8s.held_pods import Controller
    from tests.launcher.fake_cluster import FakeCluster

    if reason := why_no_docker() or why_no_kubectl():
        raise BenchmarkError(f"there is {reason}; fix: .ci/setup")
    with closing(FakeCluster()) as server, closing(Controller(server, folder, NAME)):
        server.lets_anybody_in = True
        # The pods' own folders lie beside the script, and are no code.
        (folder / ".launcherignore").write_text("cluster/\n")
        config = server.write_kubeconfig(folder / "kubeconfig")
        yield Place(
            what=f"kubernetes, {NODES} pods",
            options=(
                *("--on", "kubernetes", "--kind", "job", "--nnodes", str(NODES)),
                *("--set", "agent.in_image=false"),
            ),
            environment={"KUBECONFIG": str(config), "NO_PROXY": "127.0.0.1"},
        )
