"""ByteGrad: gradients are sent in 8 bits.

S. Gan et al. 2021, "BAGUA", and Bagua's tutorial on ByteGrad, without its reduction inside a node.
The update is that of DDP with the gradient

    g = Q( mean over the ranks i of Q(g_i) ),   Q of ``compression.MinMaxUInt8``
"""

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from fabric_train.communication.compression import CompressedMean, MinMaxUInt8
from fabric_train.communication.hooks import PhasedHook


class ByteGradHook(PhasedHook):
    """DDP's gradients as compressed means: ``ByteGradHook().attach(ddp_model)``."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self._group = group
        self._means: dict[tuple[int, ...], CompressedMean] = {}
        self._begun_for: dict[int, tuple[Tensor, list[Tensor], CompressedMean]] = {}

    def start(self, bucket: GradBucket) -> None:
        gradients = bucket.gradients()
        # The sizes belong to the key, because DDP fills its buckets anew after the first step.
        key = (bucket.index(), *(each.numel() for each in gradients))
        if key not in self._means:
            self._means[key] = CompressedMean(MinMaxUInt8(), gradients, group=self._group)
        mean = self._means[key]
        self._begun_for[bucket.index()] = (bucket.buffer(), gradients, mean)
        mean.start(gradients)

    def relay(self, index: int) -> None:
        self._begun_for[index][2].relay()

    def finish(self, index: int) -> Tensor:
        buffer, gradients, mean = self._begun_for.pop(index)
        mean.finish(gradients)
        return buffer
