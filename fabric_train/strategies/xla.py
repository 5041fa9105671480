"""xla: one process on one XLA device, such as a TPU core, where torch_xla is installed.

The model is traced for each step and runs when the weights are updated. Several processes are
refused. This project's tests run it against a stand-in for torch_xla, never on a TPU.

Cost: the weights, gradients and optimizer state lie on the device; nothing is sent to others. The
first step compiles, and so does each new shape of a batch.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fabric_train.errors import InputError
from fabric_train.strategies.strategy import Device, RankBatch, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Xla(Strategy):
    """One process on one XLA device, such as a TPU core. Where ``torch_xla`` is missing, the error
    says how to install it. The strategy has never run on a TPU.
    """

    name: ClassVar[str] = "xla"
    places_model: ClassVar[bool] = True

    def check(self, world: World | None, device: Device) -> None:
        if importlib.util.find_spec("torch_xla") is None:
            raise InputError(
                "--strategy xla: the package torch_xla is not installed",
                "on a machine with a TPU: pip install 'torch_xla[tpu]' of torch's version "
                f"({torch.__version__.partition('+')[0]} here); on GPUs and CPUs --strategy ddp",
            )
        if world is not None and world.world_size > 1:
            raise InputError(
                f"--strategy xla is one process, and there are {world.world_size}",
                "nproc_per_node 1 and one node",
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        self._xla: Any = import_module("torch_xla")
        self._host = self.place.device
        self.place = replace(self.place, device=self._xla.device())
        return model.to(self.place.device)

    def run_step(self, batch: RankBatch) -> Tensor:
        moved = ([each.to(self.place.device) for each in pair] for pair in batch.batches)
        return super().run_step(replace(batch, batches=moved)).to(self._host)

    def step(self, number: int) -> None:
        super().step(number)
        self._xla.sync()

    def predict(self, inputs: Tensor) -> Tensor:
        return super().predict(inputs.to(self.place.device)).to(self._host)
