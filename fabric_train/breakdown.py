"""What a step spends its time on, and how much of the device it uses (MFU)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from fabric_train.strategies.strategy import RankBatch

PASSES = 3
"""A backward pass takes twice the operations of the forward pass (Kaplan et al. 2020, 2.1)."""


class Breakdown:
    """Times the parts of one step from outside its strategy; waits for the device between parts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._at = self._now()
        self.parts = {"data_s": 0.0, "forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0}

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def end(self, part: str) -> None:
        """Adds the time since the last ``end`` to ``part``."""
        before, self._at = self._at, self._now()
        self.parts[part] += self._at - before

    def watch(self, batch: RankBatch) -> RankBatch:
        """The same batch, whose iterator and loss function call ``end``."""

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            value = batch.loss(outputs, targets)
            self.end("forward_s")
            return value

        return replace(batch, batches=self._time_batches(batch.batches), loss=loss)

    def _time_batches(self, batches: Iterator[Sequence[Tensor]]) -> Iterator[Sequence[Tensor]]:
        while True:
            self.end("backward_s")  # the previous micro-batch's
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.end("data_s")
            yield batch


def read_communication(model: nn.Module) -> dict[str, float]:
    """Seconds in which a step only waits for gradients, as DDP itself measured.

    DDP measures one in 100 iterations. Empty for a model without DDP.
    """
    wrapped = next((m for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
    if wrapped is None:
        return {}
    ddp_data = wrapped._get_ddp_logging_data()
    travel = ddp_data.get("avg_backward_comm_time", 0)
    hidden = ddp_data.get("avg_backward_compute_comm_overlap_time", 0)
    return {"communication_s": max(0, travel - hidden) / 1e9}


def measure_utilization(
    build: Callable[[], nn.Module],
    sample: Tensor,
    device: torch.device,
    precision: str,
    world_size: int,
) -> float:
    """Model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B) at one sample per second.

    A fraction (0 to 1) of all devices' peak; 0 if the device's peak is not known, as for a CPU.
    Counts a forward pass over ``sample`` [1, ...] of a second model, which ``build`` makes on
    torch's meta device: its weights take no memory, and attention runs as separate operations,
    because the fused ones are not counted on every device.
    """
    peak = read_peak(device, precision)
    if not peak:
        return 0.0
    with torch.device("meta"):
        model = build()
    return count_flops(model, sample.to("meta")) / (peak * world_size)


def count_flops(model: nn.Module, sample: Tensor) -> int:
    """Operations of a forward and a backward pass over ``sample``."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(sample)
    return int(PASSES * counter.get_total_flops())


def read_peak(device: torch.device, precision: str) -> int:
    """Peak operations per second of one device; 0 if Lightning's table does not list it."""
    if device.type != "cuda":
        return 0
    from lightning.fabric.utilities.throughput import get_available_flops

    types = {"bf16": torch.bfloat16, "16": torch.float16}
    try:
        dtype = types.get(precision.partition("-")[0], torch.float32)
        return get_available_flops(device, dtype) or 0
    except (ValueError, KeyError):
        return 0
