"""ddp_spawn, ddp_fork, ddp_notebook: DDP in processes that the program itself starts on one node.

For interactive use: ``python -m train --strategy ddp_spawn --strategy_options.processes 2``, or
``fabric_train.launch_processes`` in a script or a notebook. The processes are started by Fabric. A
lost process ends the training, nothing starts it again, and one node is the limit: for everything
else start ``ddp`` by the launcher or torchrun.

``ddp_spawn`` starts new interpreters, which import the script again: about 3 s each, and the
function must be importable. ``ddp_fork`` and ``ddp_notebook`` copy the process, which takes 0.1 s,
and works in notebooks; CUDA must not be in use in that process yet.

Cost: that of ``ddp``, and one more process, which waits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from fabric_train.errors import InputError
from fabric_train.strategies.ddp import Ddp
from fabric_train.strategies.strategy import Device

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class DdpSpawn(Ddp):
    """``ddp`` on one node in new interpreters (3 s each), which ``python -m train`` starts, or
    ``fabric_train.launch_processes`` in a script. A lost process ends the training. Refused
    under the launcher and torchrun.
    """

    name: ClassVar[str] = "ddp_spawn"
    heals: ClassVar[bool] = False
    start_method: ClassVar[Literal["spawn", "fork"]] = "spawn"

    processes: int = 0
    """How many processes; 0 for one on each GPU, or two on CPUs."""

    def check(self, world: World | None, device: Device) -> None:
        self.check_start(world)
        raise InputError(
            f"strategy {self.name} starts processes of its own, and launch_fabric is for one that "
            "is already started",
            "fabric_train.launch_processes(function, env, strategy=strategy)",
        )

    def check_start(self, world: World | None) -> None:
        """Raises InputError if this process cannot start the others."""
        if world is not None:
            raise InputError(
                f"--strategy {self.name}: the launcher or torchrun has started "
                f"{world.world_size} processes, and each of them would start its own again",
                "--strategy ddp, which uses the processes that are there",
            )
        if self.processes < 0:
            raise InputError(
                f"--strategy_options.processes {self.processes} is below 0",
                "leave it out for one on each GPU",
            )
        if self.start_method == "spawn" and hasattr(sys, "ps1"):
            raise InputError(
                f"strategy {self.name}: new interpreters cannot import the functions of a notebook "
                "or an interactive session",
                "strategy ddp_notebook, which copies this process",
            )
        if self.start_method == "fork" and torch.cuda.is_initialized():
            raise InputError(
                f"strategy {self.name}: CUDA is already in use in this process, and a copy of it "
                "cannot use it",
                "restart the kernel and start the training before anything touches the GPU, or "
                "strategy ddp_spawn in a script",
            )


@dataclass
class DdpFork(DdpSpawn):
    """As ``ddp_spawn``, in copies of this process (0.1 s), as long as CUDA is not in use there."""

    name: ClassVar[str] = "ddp_fork"
    start_method: ClassVar[Literal["spawn", "fork"]] = "fork"


@dataclass
class DdpNotebook(DdpFork):
    """As ``ddp_fork``, in a notebook."""

    name: ClassVar[str] = "ddp_notebook"
