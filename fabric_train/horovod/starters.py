"""Where this process stands among all, and where they meet, as the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from fabric_train.errors import InputError
from fabric_train.worker_env import RESTART_COUNT, WORLD_VARIABLES, parse_worker_env

OTHERS = {"OMPI_COMM_WORLD_SIZE": "mpirun", "HOROVOD_SIZE": "horovodrun"}
"""Starters that do not say where rank 0 is, by a variable that each of them sets."""


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A process' place in the job; ``cross_rank`` is the number of its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1

    def open_store(self) -> Store:
        """The store of all ranks. Blocks."""
        if self.size == 1:
            return HashStore()
        store: Store = next(rendezvous("env://", self.rank, self.size))[0]
        return store


def find_starter(environ: Mapping[str, str]) -> Starter:
    """The place that torchrun or the launcher gave this process; without them it is alone.

    Raises InputError for an environment that contradicts itself, and under another starter.
    """
    names = (*WORLD_VARIABLES, RESTART_COUNT)
    world = parse_worker_env({n: environ[n] for n in names if n in environ}).world
    if world is not None:
        return Starter(
            rank=world.rank,
            size=world.world_size,
            local_rank=world.local_rank,
            local_size=world.local_world_size,
            cross_rank=world.rank // world.local_world_size,
            cross_size=world.num_nodes,
        )
    for name, program in OTHERS.items():
        if environ.get(name, "1") != "1":
            raise InputError(
                f"{program} started {environ[name]} processes, and none is told where rank 0 is",
                "launcher run SCRIPT --hosts a,b, or, in an allocation: mpirun -N 1 launcher node "
                "SCRIPT",
            )
    return Starter()
