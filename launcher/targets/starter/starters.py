"""Which node a process is, as each starter of processes tells it: one small class for each.

Pure: everything is read from the environment that is handed in, and from one file of PBS.
"""

from __future__ import annotations

import contextlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.contract import protocol
from launcher.contract.errors import InputError

Environ = Mapping[str, str]

ONE_ON_EACH = (
    "srun --ntasks-per-node=1, mpirun -N 1, mpiexec -ppn 1, flux run --tasks-per-node=1, "
    "jsrun -r 1, blaunch or pbsdsh"
)
"""What starts one process on each node."""
NO_TASK_FROM = 4294967290
"""Slurm's steps from this number on are the batch script, an interactive shell and the like."""


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """One process among those that were started, by its starter's own account.

    ``nodes`` is None where the starter does not tell it. ``here`` is how many it started on this
    node. ``job`` names the run's job, the same for all processes, and is empty where nothing tells
    it; ``start`` names this start of it. ``scheduler`` is the id of the scheduler's job around
    them, empty without one. ``comes_again``: whether only a later start of the same job, such as
    one that was requeued, has the same ``job``.
    """

    starter: str
    index: int
    nodes: int | None
    here: int = 1
    job: str = ""
    start: str = ""
    scheduler: str = ""
    comes_again: bool = True


class NodeStarter(ABC):
    """One kind of starter. Methods are handed an environment in which ``is_here`` holds."""

    name: ClassVar[str]
    one_on_each: ClassVar[str]
    """How it is told to start one process on each node."""
    rank: ClassVar[str]
    """The variable that numbers the processes."""

    def is_here(self, environ: Environ) -> bool:
        """Whether this starter started the process."""
        return self.rank in environ

    @abstractmethod
    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        """How many nodes there are, None where that is not told; and how many processes this node
        has."""

    def read_index(self, environ: Environ, host: str) -> int:
        """The number of this process, from 0 on."""
        return number(environ, self.rank)

    def read_job(self, environ: Environ) -> tuple[str, str]:
        """What names the job, and beside that this start of it."""
        return scheduler_job(environ), restart_of(environ)

    def find(self, environ: Environ, host: str) -> NodePlace:
        """Raises ``InputError`` where a variable is missing or is no number."""
        nodes, here = self.read_nodes(environ)
        job, start = self.read_job(environ)
        return NodePlace(
            starter=self.name,
            index=self.read_index(environ, host),
            nodes=nodes,
            here=here,
            job=plain(job),
            start=plain(start),
            scheduler=scheduler_job(environ),
            comes_again=bool(scheduler_job(environ)),
        )


class OpenMpi(NodeStarter):
    """``mpirun`` and ``prterun`` of Open MPI (FAQ "running", environment variables)."""

    name, one_on_each = "mpirun", "mpirun -N 1"
    rank = "OMPI_COMM_WORLD_RANK"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        here = count(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
        return math.ceil(count(environ, "OMPI_COMM_WORLD_SIZE") / here), here

    def read_job(self, environ: Environ) -> tuple[str, str]:
        # One mpirun, anew for each call.
        call = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
        return scheduler_job(environ) or call, f"{restart_of(environ)}-{call}"


class Jsrun(NodeStarter):
    """``jsrun`` of IBM's Job Step Manager, in jobs of LSF."""

    name, one_on_each = "jsrun", "jsrun -r 1"
    rank = "JSM_NAMESPACE_RANK"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        size = count(environ, "JSM_NAMESPACE_SIZE")
        here = count(environ, "JSM_NAMESPACE_LOCAL_SIZE", 1)
        return math.ceil(size / here), here

    def read_job(self, environ: Environ) -> tuple[str, str]:
        return scheduler_job(environ), environ.get("JSM_NAMESPACE_ID", "")


class Flux(NodeStarter):
    """``flux run`` and ``flux submit`` (flux-environment(7))."""

    name, one_on_each = "flux run", "flux run --tasks-per-node=1"
    rank = "FLUX_TASK_RANK"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        nodes = count(environ, "FLUX_JOB_NNODES")
        here = math.ceil(count(environ, "FLUX_JOB_SIZE") / nodes)
        return nodes, max(here, number(environ, "FLUX_TASK_LOCAL_ID", 0) + 1)

    def read_job(self, environ: Environ) -> tuple[str, str]:
        return environ.get("FLUX_JOB_ID", ""), ""


class Srun(NodeStarter):
    """``srun`` of Slurm, which also starts processes for PMI-2 and PMIx (srun(1))."""

    name, one_on_each = "srun", "srun --ntasks-per-node=1"
    rank = "SLURM_PROCID"

    def is_here(self, environ: Environ) -> bool:
        # A batch script has SLURM_PROCID too, and is no task of a step.
        step = environ.get("SLURM_STEP_ID", "")
        is_task = step.isdigit() and int(step) < NO_TASK_FROM
        return self.rank in environ and is_task and not is_shell(environ)

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        nodes = count(environ, first_of(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"))
        tasks = count(environ, first_of(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
        return nodes, max(math.ceil(tasks / nodes), number(environ, "SLURM_LOCALID", 0) + 1)

    def read_job(self, environ: Environ) -> tuple[str, str]:
        # Each srun of a job is a run of its own, and a requeued job begins again with step 0.
        return f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}", restart_of(environ)


class Hydra(NodeStarter):
    """``mpiexec`` of MPICH, Intel MPI and MVAPICH, and others that speak PMI."""

    name, one_on_each = "mpiexec", "mpiexec -ppn 1"
    rank = "PMI_RANK"

    def is_here(self, environ: Environ) -> bool:
        # Slurm's own plugin for PMI sets the rank too, and no local one.
        is_own = "MPI_LOCALRANKID" in environ or "SLURM_STEP_ID" not in environ
        return self.rank in environ and is_own

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        here = count(environ, first_of(environ, "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"), 1)
        return math.ceil(count(environ, "PMI_SIZE") / here), here


class Pbs(NodeStarter):
    """``pbsdsh`` of OpenPBS and Torque, which tells each process the number of its node."""

    name, one_on_each = "pbsdsh", "pbsdsh"
    rank = "PBS_NODENUM"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        # Only the job's first node has this file.
        with contextlib.suppress(OSError, KeyError):
            lines = Path(environ["PBS_NODEFILE"]).read_text().split()
            return len(set(lines)), 1
        told = environ.get("PBS_NUM_NODES", "")
        return (int(told) if told.isdigit() else None), 1


class Blaunch(NodeStarter):
    """``blaunch`` of LSF, whose processes know the hosts of the job and not their own number."""

    name, one_on_each = "blaunch", 'blaunch -z "HOST1 HOST2"'
    rank = "LSB_MCPU_HOSTS"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        return len(self._hosts(environ)), 1

    def read_index(self, environ: Environ, host: str) -> int:
        hosts = self._hosts(environ)
        short = [name.partition(".")[0] for name in hosts]
        for names, own in ((hosts, host), (short, host.partition(".")[0])):
            if own in names:
                return names.index(own)
        raise InputError(
            f"{self.rank}={environ[self.rank]!r} does not name this host, {host}",
            'start it on these hosts: blaunch -z "HOST1 HOST2" launcher node ...',
        )

    def _hosts(self, environ: Environ) -> list[str]:
        """``host1 4 host2 4``: each host with its slots."""
        return list(dict.fromkeys(environ[self.rank].split()[::2]))


class Pmix(NodeStarter):
    """Any starter of PMIx, such as ``prun``: it tells the rank alone."""

    name, one_on_each = "the starter", "prun --map-by ppr:1:node"
    rank = "PMIX_RANK"

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        return None, 1

    def read_job(self, environ: Environ) -> tuple[str, str]:
        call = environ.get("PMIX_NAMESPACE", "")
        return scheduler_job(environ) or call, f"{restart_of(environ)}-{call}"


class ByHand(NodeStarter):
    """A site's own script, such as one over ``pdsh``, which sets the variable itself."""

    name, one_on_each = "your script", f"{protocol.NODE_INDEX}=0 launcher node ..."
    rank = protocol.NODE_INDEX

    def is_here(self, environ: Environ) -> bool:
        # A worker of a run has it too.
        return self.rank in environ and protocol.RUN_ID not in environ

    def read_nodes(self, environ: Environ) -> tuple[int | None, int]:
        return None, 1


STARTERS: tuple[NodeStarter, ...] = (
    *(ByHand(), Jsrun(), OpenMpi(), Flux(), Hydra(), Srun(), Pmix(), Pbs(), Blaunch()),
)
"""In the order in which they are looked for: one that may run inside another comes before it."""


def find_starter(environ: Environ) -> NodeStarter | None:
    """What started this process; None where nothing says that it is one of several."""
    return next((starter for starter in STARTERS if starter.is_here(environ)), None)


def find_place(environ: Environ, host: str) -> NodePlace:
    """Which of the started processes this is; ``host`` is the name of its machine.

    Raises ``InputError`` where nothing tells that, and where a node has more than one.
    """
    starter = find_starter(environ)
    if starter is None:
        raise InputError(
            "launcher node: nothing tells which node this is",
            f"start it once on each node, by {ONE_ON_EACH}; for this machine alone: launcher run",
        )
    place = starter.find(environ, host)
    if place.here > 1:
        raise InputError(
            f"{starter.name} started {place.here} processes on this node; the launcher starts the "
            "workers itself",
            f"start one on each node: {starter.one_on_each} launcher node ...",
        )
    if place.nodes is not None and place.index >= place.nodes:
        raise InputError(
            f"{starter.rank}={place.index}, but {starter.name} tells of {place.nodes} nodes",
            f"start one on each node: {starter.one_on_each} launcher node ...",
        )
    return place


def is_shell(environ: Environ) -> bool:
    """Whether this is a shell inside of ``srun --pty``, and no task that was started for work."""
    return "SLURM_PTY_PORT" in environ or "SLURM_PTY_WIN_COL" in environ


def scheduler_job(environ: Environ) -> str:
    """The id of the scheduler's job around this process; empty where there is none."""
    if element := environ.get("LSB_JOBINDEX", "0"):
        element = "" if element == "0" else f"-{element}"
    jobs = (
        environ.get("SLURM_JOB_ID", ""),
        environ.get("PBS_JOBID", "").partition(".")[0],
        f"{environ['LSB_JOBID']}{element}" if environ.get("LSB_JOBID") else "",
        environ.get("FLUX_JOB_ID", ""),
    )
    return next(filter(None, jobs), "")


def restart_of(environ: Environ) -> str:
    """How often Slurm requeued the job before."""
    return environ.get("SLURM_RESTART_COUNT", "0")


def plain(text: str) -> str:
    """An id as a part of a file's name: ``1234[5]`` is 1234-5, and Flux's letter for f an f."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("ƒ", "f")).strip("-.")


def number(environ: Environ, name: str, otherwise: int | None = None) -> int:
    """A variable that counts something. Raises ``InputError`` for anything else."""
    text = environ.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    if not (text.isascii() and text.isdigit()):
        raise InputError(
            f"{name}={text!r} is no number, so this node's place is not known",
            f"start it once on each node, by {ONE_ON_EACH}",
        )
    return int(text)


def first_of(environ: Environ, *names: str) -> str:
    """The first of the variables that is set; the first of all where none is."""
    return next((name for name in names if name in environ), names[0])


def count(environ: Environ, name: str, otherwise: int | None = None) -> int:
    """As ``number``, and at least one."""
    found = number(environ, name, otherwise)
    if found == 0:
        raise InputError(
            f"{name}=0, so this node's place is not known",
            f"start it once on each node, by {ONE_ON_EACH}",
        )
    return found
