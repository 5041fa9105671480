"""This process among all, by Horovod's names: rank and size, process groups, engine, shutdown;
refuses starts by mpirun and horovodrun."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from fabric_train.errors import InputError
from fabric_train.horovod.collectives import Channel
from fabric_train.horovod.engine import Conductor
from fabric_train.worker_env import RESTART_COUNT, WORLD_VARIABLES, World, parse_worker_env

GROUP_TIMEOUT = timedelta(days=1)
"""How long ranks wait for each other; a dead rank is noticed at once."""
OTHERS = {"OMPI_COMM_WORLD_SIZE": "mpirun", "HOROVOD_SIZE": "horovodrun"}
"""Starters that do not say where rank 0 is, by a variable that each of them sets."""
ALONE = World(rank=0, local_rank=0, world_size=1, local_world_size=1, master_addr="", master_port=0)


def find_world(environ: Mapping[str, str]) -> World:
    """The place that torchrun or the launcher gave this process; without them it is alone.

    Raises InputError for an environment that contradicts itself, and under another world.
    """
    names = (*WORLD_VARIABLES, RESTART_COUNT)
    if world := parse_worker_env({n: environ[n] for n in names if n in environ}).world:
        return world
    for name, program in OTHERS.items():
        if environ.get(name, "1") != "1":
            raise InputError(
                f"{program} started {environ[name]} processes, and none is told where rank 0 is",
                "launcher run SCRIPT --hosts a,b, or, in an allocation: mpirun -N 1 launcher node "
                "SCRIPT",
            )
    return ALONE


@dataclass(kw_only=True)
class Context:
    """What ``init`` built."""

    world: World
    engine: Conductor
    owns_group: bool
    names: dict[str, int]
    """How many requests without a name were made, by kind."""


_context: Context | None = None
_store: Store | None = None
"""The store where the ranks meet, opened once: if rank 0 opened a new one for each ``init``, a
faster rank could still find the old one, with values of ranks that have left."""
_meetings = 0
_exit_code = 0


def init() -> None:
    """Joins all processes of the job; blocks until they are there. A second call does nothing.

    Uses the process group of torch.distributed, or makes one. Raises InputError if the environment
    contradicts itself.
    """
    global _context
    if _context is not None:
        return
    world = find_world(os.environ)
    owns_group = not dist.is_initialized() and world.world_size > 1
    if owns_group:
        _make_group(world)
    engine = Conductor(_open_channel(world))
    _context = Context(world=world, engine=engine, owns_group=owns_group, names={})
    _watch_the_end()


def _make_group(world: World) -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    global _store, _meetings
    _store = _store or next(rendezvous("env://", world.rank, world.world_size))[0]
    _meetings += 1
    store = PrefixStore(f"horovod-{_meetings}", _store)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.world_size)


def _open_channel(world: World) -> Channel:
    """Makes groups for the engine alone, so that the script's collectives do not mix in."""
    if world.world_size == 1:
        return Channel()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    return Channel(
        rank=world.rank,
        size=world.world_size,
        data=dist.new_group(backend=backend, timeout=GROUP_TIMEOUT),
        control=dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT),
    )


def get() -> Context:
    """The context; raises ValueError before ``init``."""
    if _context is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _context


# -- where this process stands ---------------------------------------------------------------------


def rank() -> int:
    """This process's number among all."""
    return get().world.rank


def size() -> int:
    """The number of processes."""
    return get().world.world_size


def local_rank() -> int:
    """This process's number on its node."""
    return get().world.local_rank


def local_size() -> int:
    """The processes of this node."""
    return get().world.local_world_size


def cross_rank() -> int:
    """The number of this node."""
    return get().world.rank // local_size()


def cross_size() -> int:
    """The number of nodes."""
    return get().world.num_nodes


def nccl_built() -> bool:
    """False: Horovod's own C++ operations are not in; torch.distributed's are used instead.

    So a script that would scale its learning rate for Adasum if NCCL is built does not.
    """
    return False


mpi_built = nccl_built


def gloo_built() -> bool:
    """True: CPU tensors travel by gloo."""
    return True


def is_initialized() -> bool:
    """Whether ``init`` was called."""
    return _context is not None


def shutdown() -> None:
    """Leaves the other ranks; blocks until they leave too or make a request.

    Their requests fail from then on. ``init`` may be called again after all have left.
    """
    global _context
    context, _context = _context, None
    if context is None:
        return
    context.engine.leave()
    if context.owns_group and context.engine.agreed_to_leave:
        # A group that is freed while another rank still talks to it may abort that process.
        dist.barrier()
        dist.destroy_process_group()


def _watch_the_end() -> None:
    """Has ``_end`` called when the process ends, and notes if an exception ends it."""
    show = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _exit_code
        _exit_code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        show(kind, error, trace)

    sys.excepthook = note
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    """Leaves the other ranks when the interpreter ends, unless an exception ended it."""
    if not _exit_code:
        shutdown()
        return
    # The others see the connections close, and so they fail after this process, not before it.
    if _context is not None and not _context.engine.is_resting:
        # The engine's thread is inside a collective. It would abort the process if it came back to
        # an interpreter that has ended.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
