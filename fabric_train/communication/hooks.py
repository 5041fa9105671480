"""Communication hooks of DistributedDataParallel that need two messages for each bucket.

DDP calls a hook for one bucket after the other, in the same order on all ranks, while the backward
pass runs. The call of a bucket sends its first message. The second message needs the first one's
answer, and the last bucket's call sends it. If a future's callback sent it, as in torch's own
PowerSGD, the order of messages would depend on threads, but gloo pairs messages by their order.
"""

# DDP compares a hook's annotations with types, so they must not be strings: no __future__ import.

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel


class PhasedHook(ABC):
    """What happens to each bucket, which is known by its index, in three phases."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, torch.futures.Future[Tensor]]] = []

    @abstractmethod
    def start(self, bucket: GradBucket) -> None:
        """Sends the first message; must not block."""

    @abstractmethod
    def relay(self, index: int) -> None:
        """Waits for the first message's answer, and sends the second one."""

    @abstractmethod
    def finish(self, index: int) -> Tensor:
        """Waits for the second answer: the bucket's mean, ``[elements]``."""

    def attach(self, model: DistributedDataParallel) -> None:
        """Makes DDP reduce its gradients by this hook."""
        model.register_comm_hook(self, run_phases)

    def take(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """The future of a bucket's mean."""
        buffer = bucket.buffer()
        on_cuda = buffer.device.type == "cuda"
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[buffer.device] if on_cuda else None
        )
        self.start(bucket)
        self._begun.append((bucket.index(), future))
        if bucket.is_last():
            begun, self._begun = self._begun, []
            for index, _ in begun:
                self.relay(index)
            for index, each in begun:
                each.set_result(self.finish(index))
        return future


def run_phases(state: PhasedHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The function that DDP is given."""
    return state.take(bucket)
