"""``slurm``: starts, lost nodes and large jobs on a real slurmctld, beside srun with torchrun.

The cluster is that of the tests: three nodes on this machine, each a slurmd of its own. A node is
lost by SIGKILL to its slurmd and to all that runs on it.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.commands import find_launcher, find_torchrun, free_port, run
from benchmarks.groups import (
    BUSY,
    ENVIRONMENT,
    HOST,
    RESTARTS,
    SCRIPT,
    Collective,
    find_first,
    parse_collectives,
)
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.recovery import SLOW_PAIRS, TUNED
from benchmarks.start import TRAINING, read_first_step
from benchmarks.trials import Comparison, Sample, Trial, compare, in_turn

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

NODES = 2
MANY = 1_000
KINDS = ("allocation", "array")
LIMIT_S = 120.0
POLL_S = 0.02
MANY_NODES = """\
SuspendTime=86400
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendExcNodes=n[1-3]
NodeName=m[1-{count}] NodeAddr=127.0.0.1 Port=19999 CPUs=2 RealMemory=4000 State=CLOUD
PartitionName=many Nodes=m[1-{count}] MaxTime=INFINITE State=UP
"""
"""Nodes that are switched off: to slurmctld they are there, and jobs for them are taken."""
SHORTEST = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --exclusive --output={folder}/log
srun torchrun --nnodes={nodes} --nproc-per-node=1 --rdzv-backend=c10d \\
  --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$(hostname):{port} {command}
"""
ELASTIC = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --exclusive --no-kill --output={folder}/log
scontrol show hostnames "$SLURM_JOB_NODELIST" > {folder}/nodes
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c 'torchrun {options} \\
  --rdzv-conf=is_host=$((SLURM_PROCID == 0)){conf} {command}'
"""


def runs_on_slurm() -> Generator[Trial]:
    """Raises BenchmarkError where no cluster can be made here."""
    with started_cluster() as cluster:
        yield compare(
            f"command to the first optimizer step, {NODES} nodes, against sbatch and srun",
            partial(start_launcher, cluster),
            partial(start_by_hand, cluster),
            Goal(of="ratio", most=1.05),
        )
        yield from lose_nodes(cluster)
        yield compare(
            f"launcher run --detach of {MANY:,} nodes, until it is submitted",
            partial(submit_many, cluster),
            goal=Goal(of="seconds", most=2.0),
        )


def lose_nodes(cluster: Cluster) -> Generator[Trial]:
    """One row for each kind against torchrun's defaults, one against its quickest settings."""
    ours: dict[str, Sample] = {kind: partial(lose_launcher, cluster, kind) for kind in KINDS}
    what = "node lost in a collective, kind {}, to the next collective, against {}"
    for conf, peer, pairs in (
        ({}, "srun with torchrun", SLOW_PAIRS),
        (TUNED, "tuned torchrun", None),
    ):
        yield Trial(
            take=in_turn({**ours, "theirs": partial(lose_by_hand, cluster, conf)}),
            rows=tuple(Comparison(what=what.format(kind, peer), ours=kind) for kind in KINDS),
            warm_up=0,
            pairs=pairs,
        )


@contextmanager
def started_cluster() -> Iterator[Cluster]:
    """Three nodes that run jobs, and many that are only declared."""
    # Only where they are asked for: tests are no part of an installation.
    from tests.conftest import why_no_slurm
    from tests.slurm.cluster import Cluster

    if reason := why_no_slurm():
        raise BenchmarkError(f"there is {reason}; fix: .ci/setup")
    cluster = Cluster()
    conf = cluster.folder / "slurm.conf"
    text = conf.read_text().replace("Nodes=ALL", "Nodes=n[1-3]")
    conf.write_text(text + MANY_NODES.format(count=MANY))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


# -- one sample --------------------------------------------------------------------------------
def start_launcher(cluster: Cluster) -> float:
    """Seconds from the launcher's start to the end of the first optimizer step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        job = ("run", "jobs/digits.yaml", *_options(runs, str(NODES)), "--", *TRAINING)
        ran = run((*find_launcher(), *job), environment_of(cluster))
        first_step_at = read_first_step(Path(runs) / "latest")
        cluster.wait_idle()
        return first_step_at - ran.started_at


def start_by_hand(cluster: Cluster) -> float:
    """The same by the shortest batch script, with the same training arguments."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = shlex.join(("-m", "train", *TRAINING))
        script = SHORTEST.format(nodes=NODES, folder=folder, port=free_port(), command=command)
        Path(folder, "job.sh").write_text(script)
        environment = {**environment_of(cluster), "RUN_DIR": folder}
        try:
            ran = run(("sbatch", "--wait", f"{folder}/job.sh"), environment)
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n{_tail(Path(folder, 'log'))}") from error
        first_step_at = read_first_step(Path(folder))
        cluster.wait_idle()
        return first_step_at - ran.started_at


def lose_launcher(cluster: Cluster, kind: str) -> float:
    """Seconds from the loss of the second of two nodes to the other's next collective."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = (*_options(f"{folder}/runs", f"1:{NODES}", kind), "--set", "start=fork")
        words = (*find_launcher(), "run", str(SCRIPT), *options, "--detach", "--")
        run((*words, f"{folder}/told", str(BUSY)), environment_of(cluster))
        try:
            return _lose(cluster, Path(folder), "runs/latest/slurm/*.started")
        finally:
            run((*find_launcher(), "stop", "--runs", f"{folder}/runs"), environment_of(cluster))
            cluster.mend()


def lose_by_hand(cluster: Cluster, conf: Mapping[str, str]) -> float:
    """The same with elastic torchruns, which srun does not end with the lost one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = [f"--nnodes=1:{NODES}", "--nproc-per-node=1", f"--max-restarts={RESTARTS}"]
        options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{free_port()}"]
        options += ["--rdzv-id=benchmark", f"--local-addr={HOST}"]
        script = ELASTIC.format(
            nodes=NODES,
            folder=folder,
            options=" ".join(options),
            conf="".join(f",{key}={value}" for key, value in conf.items()),
            command=shlex.join((str(SCRIPT), f"{folder}/told", str(BUSY))),
        )
        Path(folder, "job.sh").write_text(script)
        run(("sbatch", f"{folder}/job.sh"), environment_of(cluster))
        try:
            return _lose(cluster, Path(folder), "nodes")
        finally:
            cluster.ask("scancel", "--user=root")
            cluster.mend()


def submit_many(cluster: Cluster) -> float:
    """Seconds of the whole command; the job is cancelled afterwards, and never starts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        options = (*_options(runs, str(MANY)), "--set", "slurm.partition=many")
        # What would start would have to be ended.
        later = ("--set", "slurm.extra=[--begin=now+1hour]", "--detach")
        job = ("run", "jobs/digits.yaml", *options, *later)
        ran = run((*find_launcher(), *job), environment_of(cluster))
        # Not by scancel alone: the launcher in the background must end before its folder goes.
        run((*find_launcher(), "stop", "latest", "--runs", runs), environment_of(cluster))
        cluster.wait_idle()
        return ran.duration_s


# -- within ------------------------------------------------------------------------------------
def _options(runs: str, nnodes: str, kind: str = "allocation") -> tuple[str, ...]:
    slurm = ("--set", f"slurm.kind={kind}", "--set", "slurm.exclusive=true")
    return ("--on", "slurm", "--runs", runs, "--nnodes", nnodes, "--nproc-per-node", "1", *slurm)


def environment_of(cluster: Cluster) -> dict[str, str]:
    """Of both sides: the cluster's commands, and torchrun beside this interpreter."""
    path = f"{Path(find_torchrun()[0]).parent}:{cluster.env['PATH']}"
    conf = {"SLURM_CONF": cluster.env["SLURM_CONF"], "PATH": path}
    return {**ENVIRONMENT, **conf}


def _lose(cluster: Cluster, folder: Path, names: str) -> float:
    """Ends the node of the second worker once both have been in a collective."""
    told = folder / "told"

    def read() -> tuple[Collective, ...]:
        return parse_collectives(told.read_text()) if told.exists() else ()

    def both() -> bool:
        return len({one.rank for one in read() if one.world_size == NODES}) == NODES

    _wait(both, folder, "a collective of both nodes")
    *_, victim = " ".join(path.read_text() for path in sorted(folder.glob(names))).split()
    old = frozenset(one.pid for one in read())
    killed_at = time.monotonic()
    cluster.kill_node(victim)
    _wait(lambda: find_first(read(), 1, old) is not None, folder, "the next collective")
    first = find_first(read(), 1, old)
    assert first is not None
    return first.at - killed_at


def _wait(condition: Callable[[], bool], folder: Path, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            logs = [folder / "log", *folder.glob("runs/*/slurm/*.log")]
            said = "\n".join(_tail(path) for path in logs)
            raise BenchmarkError(f"{what} did not come within {LIMIT_S:g} s\n{said}")
        time.sleep(POLL_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:]) if log.exists() else ""
