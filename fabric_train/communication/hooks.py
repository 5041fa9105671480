"""Communication hooks of DistributedDataParallel that send fewer bytes: ByteGrad and PowerSGD.

Both need two messages for each bucket. DDP calls a hook for one bucket after the other, in the same
order on all ranks, while the backward pass runs. The call of a bucket sends its first message. The
second message needs the first one's answer, and the last bucket's call sends it. If a future's
callback sent it, as in torch's own PowerSGD, the order of messages would depend on threads, but
gloo pairs messages by their order.

ByteGrad (S. Gan et al. 2021, "BAGUA", and Bagua's tutorial on ByteGrad, without its reduction
inside a node) updates as DDP with the gradient

    g = Q( mean over the ranks i of Q(g_i) ),   Q of ``compression.MinMaxUInt8``

PowerSGD (T. Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", algorithms 1 and 2) sends a matrix as the product of two thin ones. For the gradient
G_i of a weight on rank i, seen as a matrix ``[n, m]``, with the error e_i = 0 and a random Q ``[m,
r]`` at the start:

    M_i = G_i + e_i
    P   = orthonormal basis of (sum_i M_i Q)
    Q   = mean_i M_i^T P
    M'  = P Q^T            the gradient that all ranks use
    e_i = M_i - M'

Errors and Q are kept for each parameter by its name. torch's own hook keeps them for each bucket,
whose content changes after the first step of every start, so that a resumed training gives a
parameter another one's error.
"""

# DDP compares a hook's annotations with types, so they must not be strings: no __future__ import.

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from fabric_train.communication.compression import CompressedMean, MinMaxUInt8


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

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
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
    return state.reduce(bucket)


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


@dataclass
class Matrix:
    """One compressed parameter of a bucket: its gradient plus error, and views of P and Q."""

    name: str
    value: Tensor
    p: Tensor
    q: Tensor


@dataclass
class Begun:
    """What is under way for one bucket."""

    buffer: Tensor
    works: list[dist.Work] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    rest: list[Tensor] = field(default_factory=list)
    """Gradients that are not compressed, and ``rest_sum``, their sum over the ranks."""
    rest_sum: Tensor | None = None
    qs: Tensor | None = None


class PowerSgdHook(PhasedHook):
    """DDP's gradients by PowerSGD: ``PowerSgdHook(model).attach(ddp_model)``.

    ``model``: without DDP, for the parameters' names. Plain averages before
    ``start_powerSGD_iter`` steps; from then on a weight of n rows and m columns is compressed if
    (n + m) * rank * ``min_compression_rate`` < n * m.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,  # noqa: N803 (torch's spelling)
        min_compression_rate: float = 2.0,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._places = {name: place for place, name in enumerate(self._names.values())}
        self.rank, self.start_iter = matrix_approximation_rank, start_powerSGD_iter
        self.min_rate, self._seed, self._group = min_compression_rate, seed, group
        self.iteration = 0
        """Optimizer steps whose gradients were reduced, over all restarts."""
        self.errors: dict[str, Tensor] = {}
        """What each compressed parameter's last gradient left out on this rank, ``[n, m]``."""
        self.qs: dict[str, Tensor] = {}
        """The last Q of each compressed parameter, equal on all ranks, ``[m, r]``."""
        self._begun_for: dict[int, Begun] = {}

    def start(self, bucket: GradBucket) -> None:
        begun = self._begun_for[bucket.index()] = Begun(bucket.buffer())
        if self.iteration < self.start_iter:
            begun.rest, begun.rest_sum = [begun.buffer], begun.buffer
        else:
            self._compress(bucket, begun)
        if begun.rest_sum is not None:
            begun.works.append(self._send(begun.rest_sum))

    def relay(self, index: int) -> None:
        begun = self._begun_for[index]
        for work in begun.works:
            work.wait()
        if not begun.matrices:
            return
        begun.qs = begun.buffer.new_empty(sum(each.q.numel() for each in begun.matrices))
        start = 0
        for each in begun.matrices:
            q = begun.qs[start : start + each.q.numel()].view(each.q.shape)
            start += q.numel()
            each.p = torch.linalg.qr(each.p).Q
            each.q = torch.mm(each.value.t(), each.p, out=q)
        begun.works = [self._send(begun.qs)]

    def finish(self, index: int) -> Tensor:
        begun, ranks = self._begun_for.pop(index), dist.get_world_size(self._group)
        if begun.rest_sum is not None:
            begun.rest_sum /= ranks
            parts = begun.rest_sum.split([each.numel() for each in begun.rest])
            for each, part in zip(begun.rest, parts, strict=True):
                each.copy_(part.view(each.shape))
        if begun.qs is not None:
            begun.works[0].wait()
            begun.qs /= ranks
            for matrix in begun.matrices:
                error = self.errors[matrix.name].copy_(matrix.value)
                torch.mm(matrix.p, matrix.q.t(), out=matrix.value)
                error -= matrix.value
                self.qs[matrix.name] = matrix.q
        if not self._begun_for:
            self.iteration += 1
        return begun.buffer

    def _compress(self, bucket: GradBucket, begun: Begun) -> None:
        chosen = []
        for weight, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            rank = self.choose_rank(weight)
            if rank and gradient.is_contiguous():  # channels_last is sent whole
                name = self._names[id(weight)]
                chosen.append((name, gradient.view(len(gradient), -1), rank))
            else:
                begun.rest.append(gradient)
        ps = begun.buffer.new_empty(sum(len(value) * rank for _, value, rank in chosen))
        start = 0
        for name, value, rank in chosen:
            value += self._error_of(name, value)
            p = ps[start : start + len(value) * rank].view(len(value), rank)
            start += p.numel()
            q = self._q_of(name, value, rank)
            begun.matrices.append(Matrix(name, value, torch.mm(value, q, out=p), q))
        if begun.matrices:
            begun.works.append(self._send(ps))
        if begun.rest:
            begun.rest_sum = torch.cat([each.reshape(-1) for each in begun.rest])

    def choose_rank(self, weight: Tensor) -> int:
        """The columns of P and Q; 0 for a parameter that is sent as it is."""
        if weight.dim() < 2:
            return 0
        n, m = len(weight), weight.numel() // max(1, len(weight))
        rank = min(n, m, self.rank)
        return rank if (n + m) * rank * self.min_rate < n * m else 0

    def _error_of(self, name: str, value: Tensor) -> Tensor:
        if name not in self.errors:
            self.errors[name] = torch.zeros_like(value)
        return self.errors[name]

    def _q_of(self, name: str, value: Tensor, rank: int) -> Tensor:
        q = self.qs.get(name)
        if q is None or q.shape != (value.shape[1], rank):
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._places[name])
            q = torch.randn(value.shape[1], rank, generator=generator).to(value)
        return q

    def _send(self, values: Tensor) -> dist.Work:
        work: dist.Work = dist.all_reduce(values, group=self._group, async_op=True)
        return work
