"""Every rank has weights of its own, and averages them with its peers': in each step, or beside the
training.

``PeerAverage`` is D-PSGD (X. Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized
Algorithms?", algorithm 1), as in Bagua's ``DecentralizedAlgorithm``:

    x_i' = mean of x_j over i and its peers
    x_i  = x_i' - lr * g_i(x_i)         the gradient is that of the weights before

``LowPrecisionRing`` is DCD-PSGD (H. Tang et al. 2018, "Communication Compression for Decentralized
Training", algorithm 1) on a ring with weights of 1/3, as in Bagua's
``LowPrecisionDecentralizedAlgorithm``:

    z_i = (x_i + x_left + x_right) / 3 + step_i - x_i
    x_i = x_i + Q(z_i), and so on the two neighbours, which hold replicas of x_i

``AsyncAverage`` is Bagua's ``AsyncModelAverageAlgorithm`` (S. Gan et al. 2021, "BAGUA"). A rank
takes a copy c_i of its weights, all ranks' copies are averaged beside the training, and when the
mean arrives, the rank adds the difference between mean and copy to the weights that it has by then:

    x_i = x_i + mean_j c_j - c_i

so that the steps in between are kept, and the mean of all ranks' weights does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from fabric_train.communication.compression import Blocks, Codec, MinMaxUInt8
from fabric_train.communication.exchange import exchange
from fabric_train.communication.mean import flatten, write_back

Peers = Literal["all", "shift_one"]


def find_peer(rank: int, ranks: int, number: int) -> int:
    """The partner in exchange ``number``, by Bagua's shift_one; ``ranks`` is even.

    A rank of the lower half meets the ranks of the upper half one after the other.
    """
    half = ranks // 2
    return half + (number + rank) % half if rank < half else (rank - half - number) % half


class PeerAverage:
    """Averages weights with one peer, or with all, while the gradient is computed.

    Call ``start`` before the forward pass, ``finish`` after the backward pass and before the
    optimizer's step. Each rank sends n elements of 4 bytes to one peer, or all-reduces them.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        peers: Peers = "all",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._weights, self._peers, self._group = list(weights), peers, group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._works: list[dist.Work] = []
        self._sent = self._received = torch.empty(0)
        if peers == "shift_one" and self._ranks % 2:
            raise ValueError(f"shift_one pairs the ranks, but there are {self._ranks}")

    def start(self, number: int) -> None:
        """Begins exchange ``number``, counted from 0 over all restarts; does not block."""
        self._sent = flatten(self._weights)
        if self._peers == "all":
            work = dist.all_reduce(self._sent, group=self._group, async_op=True)
            assert work is not None
            self._works = [work]
            return
        peer = find_peer(self._rank, self._ranks, number)
        self._received = torch.empty_like(self._sent)
        self._works = exchange([(self._sent, peer)], [(self._received, peer)], self._group)

    def finish(self) -> None:
        """Waits for the exchange that was begun, if any, and puts the mean into the weights."""
        if not self._works:
            return
        works, self._works = self._works, []
        for work in works:
            work.wait()
        if self._peers == "all":
            mean = self._sent.div_(self._ranks)
        else:
            mean = self._sent.add_(self._received).div_(2)
        write_back(mean, self._weights)
        self._sent = self._received = torch.empty(0)


class LowPrecisionRing:
    """Keeps replicas of both neighbours' weights up to date by compressed differences.

    All ranks have equal weights when it is made. Call ``mix`` after every step of the optimizer.
    Each rank sends n elements to each neighbour: n * (1 + 8 / 512) bytes with 8 bits. Keeps three
    copies of the weights.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        codec: Codec | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._weights, self._group, self._codec = list(weights), group, codec or MinMaxUInt8()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self._neighbours = (rank - 1) % ranks, (rank + 1) % ranks
        self.reset()

    def reset(self) -> None:
        """Starts over from the present weights, which must be equal on all ranks."""
        self._blocks = Blocks(self._weights)
        self._here = self._blocks.pack(self._weights)
        self._left, self._right = self._here.clone(), self._here.clone()

    def mix(self) -> None:
        """Exchanges the step that the optimizer has made; blocks."""
        change = self._blocks.pack(self._weights)
        change += (self._left + self._right - 5 * self._here) / 3
        code = self._codec.encode(change, self._blocks.counts)
        left, right = self._neighbours
        from_left, from_right = torch.empty_like(code), torch.empty_like(code)
        # With two processes both neighbours are the same peer: the order pairs the messages.
        for work in exchange(
            [(code, left), (code, right)], [(from_right, right), (from_left, left)], self._group
        ):
            work.wait()
        self._left += self._codec.decode(from_left)
        self._right += self._codec.decode(from_right)
        self._here += self._codec.decode(code)
        self._blocks.unpack(self._here, self._weights)


class AsyncAverage:
    """Averages weights in the background; all ranks make one, over the same weights.

    Call ``after_step`` after every step of the optimizer, and ``settle`` where all ranks are at the
    same step: before a checkpoint, a test, and the end. A rank that waits for a peer for
    ``timeout_s`` raises RuntimeError in its next call, as it does for a peer that has died.

    It has gloo groups of its own, so that its messages never mix with the training's; weights on a
    GPU are copied to the host. Takes two copies of the weights.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        *,
        interval_s: float = 0.5,
        timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights, self._interval_s, self._clock = list(weights), interval_s, clock
        self._ranks = dist.get_world_size()
        limit = timedelta(seconds=timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=limit)
        self._control = dist.new_group(backend="gloo", timeout=limit)
        self._work: dist.Work | None = None
        self._copy = self._sum = torch.empty(0)
        self._begun_at = clock()
        self.begun = 0
        """Averages that this rank has begun. The next one begins when all ranks have begun the one
        before, so two ranks' numbers differ by one at most."""

    def after_step(self) -> None:
        """Takes an average that has arrived, and begins the next one when it is due.

        Never waits for a peer.
        """
        if self._work is not None and self._work.is_completed():
            self._apply_average()
        if self._work is None and self._clock() - self._begun_at >= self._interval_s:
            self._begin()

    def settle(self) -> None:
        """Finishes every average that a rank has begun. All ranks must call it; blocks."""
        most = torch.tensor([self.begun])
        # Not over the group of the averages, where a rank may be one message behind.
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._control)
        if self._work is not None:
            self._apply_average()
        if self.begun < int(most):
            self._begin()
            self._apply_average()

    def _begin(self) -> None:
        self._copy = flatten(self._weights).cpu()
        self._sum = self._copy.clone()
        self._work = dist.all_reduce(self._sum, group=self._group, async_op=True)
        self._begun_at = self._clock()
        self.begun += 1

    def _apply_average(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        work.wait()
        change = self._sum.div_(self._ranks).sub_(self._copy)
        device = self._weights[0].device
        write_back(flatten(self._weights).add_(change.to(device)), self._weights)
        self._copy = self._sum = torch.empty(0)
