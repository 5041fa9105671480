"""Which node a process is, by the variables of srun, mpirun, mpiexec or a script; refuses more than
one process on a node. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.targets.slurm_process import read_slurm

Environ = Mapping[str, str]

ONE_ON_EACH = {
    "srun": "srun --ntasks-per-node=1",
    "mpirun": "mpirun -N 1",
    "mpiexec": "mpiexec -ppn 1",
}
"""How each starter is told to start one process on each node."""
BY_HAND = "your script"
START = (
    f"start it once on each node, by {', '.join(ONE_ON_EACH.values())}; under any other starter "
    f"set {protocol.NODE_INDEX} to 0, 1, ... there, with the same --nnodes and --run-id on all"
)
"""The fix if a process cannot find out which node it is."""


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """What a starter says about one of the processes that it started.

    ``nodes`` is None if the starter does not say how many there are. ``here`` is how many processes
    it started on this node. ``job`` names the job, the same for all processes (empty if unknown);
    ``start`` names this start of it. ``scheduler`` is the id of the scheduler's job around the
    processes, empty without one.
    """

    starter: str
    index: int
    nodes: int | None
    here: int = 1
    job: str = ""
    start: str = ""
    scheduler: str = ""


def _find_by_hand(environ: Environ) -> NodePlace | None:
    """A site's own script, which sets the node index. A run's workers have that too."""
    if protocol.NODE_INDEX not in environ or protocol.RUN_ID in environ:
        return None
    return _place(environ, BY_HAND, protocol.NODE_INDEX)


def _find_open_mpi(environ: Environ) -> NodePlace | None:
    """``mpirun`` and ``prterun`` of Open MPI (FAQ "running", environment variables)."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    # Names this one call of mpirun.
    call = plain(environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""))
    return _place(environ, "mpirun", *names, call=call)


def _find_hydra(environ: Environ) -> NodePlace | None:
    """``mpiexec`` of MPICH and Intel MPI. Other starters set PMI_RANK, but not MPI_LOCALNRANKS."""
    if "PMI_RANK" not in environ or "MPI_LOCALNRANKS" not in environ:
        return None
    return _place(environ, "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


def _place(
    environ: Environ, starter: str, rank: str, size: str = "", local: str = "", *, call: str = ""
) -> NodePlace:
    """Reads a place from the variables of these names; ``size`` and ``local`` count processes.

    ``call`` names this call of the starter, empty if unknown.
    """
    scheduler, start = _scheduler(environ)
    here = _number(environ, local, least=1) if local else 1
    return NodePlace(
        starter=starter,
        index=_number(environ, rank),
        nodes=math.ceil(_number(environ, size, least=1) / here) if size else None,
        here=here,
        job=scheduler or call,
        start="-".join(filter(None, (start, call))),
        scheduler=scheduler,
    )


def _find_srun(environ: Environ) -> NodePlace | None:
    """``srun`` of Slurm, which also starts processes for PMI-2 and PMIx (srun(1))."""
    process = read_slurm(environ)
    if process is None or not process.is_task:
        return None
    nodes = _number(environ, "SLURM_STEP_NUM_NODES", least=1)
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", least=1)
    return NodePlace(
        starter="srun",
        index=_number(environ, "SLURM_PROCID"),
        nodes=nodes,
        here=math.ceil(tasks / nodes),
        # Each srun of a job is a run of its own, and a requeued job begins again with step 0.
        job=f"{process.job}.{process.step}",
        start=process.restarts,
        scheduler=str(process.job),
    )


STARTERS: tuple[Callable[[Environ], NodePlace | None], ...] = (
    *(_find_by_hand, _find_open_mpi, _find_hydra, _find_srun),
)
"""Tried in this order: a starter that may run inside another comes before that other."""


def find_started(environ: Environ) -> NodePlace | None:
    """The place of this process; None if no starter started it.

    Raises ``InputError`` if a variable of the starter is missing or is no number.
    """
    return next(filter(None, (find(environ) for find in STARTERS)), None)


def find_place(environ: Environ) -> NodePlace:
    """Which node this is. Raises ``InputError`` if unknown, or if the node has more processes."""
    place = find_started(environ)
    if place is None:
        raise InputError(
            "launcher node: cannot find out which node this is",
            f"{START}; for this machine alone: launcher run",
        )
    if place.here > 1:
        raise InputError(
            f"{place.starter} started {place.here} processes on this node; the launcher starts the "
            "workers itself",
            f"start one on each node: {ONE_ON_EACH[place.starter]} launcher node ...",
        )
    return place


def check_alone(environ: Environ) -> None:
    """Raises ``InputError`` if a starter started this command several times."""
    place = find_started(environ)
    if place is not None and (count := (place.nodes or 1) * place.here) > 1:
        raise InputError(
            f"{place.starter} started this command {count} times, and each would be a training of "
            "its own",
            f"one training on all nodes: {ONE_ON_EACH[place.starter]} launcher node ...; "
            "on this machine alone: --on local",
        )


def _scheduler(environ: Environ) -> tuple[str, str]:
    """The id of the scheduler's job around this process (empty if none), and its restarts."""
    if (process := read_slurm(environ)) is not None:
        return str(process.job), process.restarts
    return plain(environ.get("PBS_JOBID", "").partition(".")[0]), "0"


def plain(text: str) -> str:
    """An id as a part of a file's name: ``1234[5]`` is 1234-5."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")


def _number(environ: Environ, name: str, least: int = 0) -> int:
    """A variable that counts something. Raises ``InputError`` for anything else."""
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        what = f"{name}={text!r} is no valid number, so it is unknown which node this is"
        raise InputError(what, START)
    return int(text)
