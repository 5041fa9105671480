"""How the gradients of the virtual shards become one gradient: by DDP's mean (``fast``), or equal
bit for bit at any world size (``exact``).

``fast`` lets DDP average them: equal up to rounding at any world size. ``exact`` adds them up in an
order that does not depend on the world size: equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fabric_train.errors import InputError
from fabric_train.sampling.sampler import plan_rank_shards

Node = tuple[int, int]
"""A node of the tree: the sum over the virtual shards [first, stop)."""

ALIGNMENT_BYTES = 64
"""The alignment of torch's CPU allocator; CUDA's aligns to 512."""


class FastReduction:
    """The mean over the virtual shards, by DDP's all-reduce in a rank's last backward pass.

    ``model`` is the one to call: a DistributedDataParallel, or any model in a world of one.
    """

    def __init__(self, model: nn.Module, *, virtual_shards: int, world_size: int) -> None:
        self._model = model
        self._bare = model.module if isinstance(model, DistributedDataParallel) else model
        self._weight = world_size / virtual_shards

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        """The outputs for a micro-batch, within ``sync``.

        Only the last micro-batch needs DDP's forward pass, which prepares to send gradients and
        costs a twelfth of the digits model's step. DDP's hooks ignore unprepared backward passes.
        """
        outputs: Tensor = (self._model if last else self._bare)(inputs)
        return outputs

    def backward(self, loss: Tensor, shard: int) -> None:
        """Adds one virtual shard's gradients; ``loss`` is the shard's mean."""
        (loss * self._weight).backward()

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Around a shard's forward and backward pass: only the last shard sends gradients."""
        if last or not isinstance(self._model, DistributedDataParallel):
            return nullcontext()
        return self._model.no_sync()

    def finish(self) -> None:
        """Does nothing: DDP has put the mean into the gradients."""


class ExactReduction:
    """The mean over the virtual shards, added up as one balanced binary tree at any world size.

    A rank adds up the subtrees that it holds completely. all_to_all exchanges the remaining sums,
    each rank finishes the tree for a piece of the gradient, and all_gather distributes the pieces.
    If the world size divides the shards and both are powers of two, the traffic is a ring
    all-reduce's.

    ``model`` must not be wrapped by DDP. All ranks must call ``finish``.
    """

    def __init__(
        self, model: nn.Module, *, virtual_shards: int, rank: int = 0, world_size: int = 1
    ) -> None:
        refuse_batch_norm(model)
        self._model = model
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        check_alignment(self._parameters)
        self._virtual_shards = virtual_shards
        self._rank = rank
        self._covers = [
            plan_cover(plan_rank_shards(virtual_shards, each, world_size), virtual_shards)
            for each in range(world_size)
        ]
        self._sums = TreeSum(virtual_shards)

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        """The outputs for a micro-batch."""
        outputs: Tensor = self._model(inputs)
        return outputs

    def backward(self, loss: Tensor, shard: int) -> None:
        """Adds one virtual shard's gradients; ``loss`` is the shard's mean."""
        for parameter in self._parameters:
            parameter.grad = None  # adding up in place would change the order
        loss.backward()
        self._sums.add((shard, shard + 1), flatten_gradients(self._parameters))

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Does nothing: only ``finish`` sends gradients."""
        return nullcontext()

    def finish(self) -> None:
        """Puts the mean into the parameters' gradients, each in its own memory."""
        sums, self._sums = self._sums, TreeSum(self._virtual_shards)
        cover = self._covers[self._rank]
        total = (
            self._exchange([sums.pop(node) for node in cover])
            if len(self._covers) > 1
            else sums.pop((0, self._virtual_shards))
        )
        assign_gradients(self._parameters, total / self._virtual_shards)

    def _exchange(self, own_sums: list[Tensor]) -> Tensor:
        world_size, length = len(self._covers), own_sums[0].numel()
        piece = -(-length // world_size)
        padded = own_sums[0].new_zeros(len(own_sums), world_size * piece)
        padded[:, :length] = torch.stack(own_sums)
        # [nodes, world, piece] to [world, nodes, piece], so that each rank's part is contiguous.
        sent = padded.view(len(own_sums), world_size, piece).transpose(0, 1).contiguous().view(-1)
        counts = [len(cover) for cover in self._covers]
        received = sent.new_empty(sum(counts) * piece)
        dist.all_to_all_single(
            received,
            sent,
            [count * piece for count in counts],
            [len(own_sums) * piece] * world_size,
        )
        sums = TreeSum(self._virtual_shards)
        nodes = [node for cover in self._covers for node in cover]
        for node, part in zip(nodes, received.split(piece), strict=True):
            sums.add(node, part)
        total = sent.new_empty(world_size * piece)
        dist.all_gather(list(total.split(piece)), sums.pop((0, self._virtual_shards)).contiguous())
        return total[:length]


class TreeSum:
    """Adds up shards along one tree, in whichever order they come; holds few sums at a time."""

    def __init__(self, virtual_shards: int) -> None:
        self._parents = plan_parents(virtual_shards)
        self._sums: dict[Node, Tensor] = {}

    def add(self, node: Node, value: Tensor) -> None:
        """Takes the sum of a node, and adds up every parent that it completes."""
        while node in self._parents:
            parent, left, right = self._parents[node]
            sibling = self._sums.pop(right if node == left else left, None)
            if sibling is None:
                break
            value = value + sibling  # the same bits in either order
            node = parent
        self._sums[node] = value

    def pop(self, node: Node) -> Tensor:
        """The sum of a complete node; KeyError if a shard is missing."""
        return self._sums.pop(node)


def plan_parents(virtual_shards: int) -> dict[Node, tuple[Node, Node, Node]]:
    """For each node but the root: its parent, and the parent's left and right child."""
    parents: dict[Node, tuple[Node, Node, Node]] = {}
    waiting = [(0, virtual_shards)]
    while waiting:
        first, stop = node = waiting.pop()
        if stop - first > 1:
            middle = (first + stop) // 2
            children = (first, middle), (middle, stop)
            parents |= dict.fromkeys(children, (node, *children))
            waiting += children
    return parents


def plan_cover(shards: range, virtual_shards: int) -> list[Node]:
    """The fewest nodes of the tree over [0, virtual_shards) that make up ``shards``, in order."""
    cover: list[Node] = []
    waiting = [(0, virtual_shards)]
    while waiting:
        first, stop = waiting.pop()
        if stop <= shards.start or first >= shards.stop:
            continue
        if shards.start <= first and stop <= shards.stop:
            cover.append((first, stop))
        else:
            middle = (first + stop) // 2
            waiting += [(middle, stop), (first, middle)]
    return cover


def align(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that are contiguous and start at an allocator's boundary.

    A view into a larger tensor may start anywhere, and kernels round differently at some offsets:
    Linear(64, 10) gave other bits at 12 of 16 offsets of its input (torch 2.13, CPU).
    """
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]


def flatten_gradients(parameters: Iterable[nn.Parameter]) -> Tensor:
    """All gradients one after the other, [elements]; zeros for a parameter without one."""
    return torch.cat(
        [
            (torch.zeros_like(each) if each.grad is None else each.grad).reshape(-1)
            for each in parameters
        ]
    )


def assign_gradients(parameters: Iterable[nn.Parameter], flat: Tensor) -> None:
    """The reverse of ``flatten_gradients``, into new memory."""
    start = 0
    for parameter in parameters:
        part = flat[start : start + parameter.numel()].view(parameter.shape)
        parameter.grad = part.clone(memory_format=torch.contiguous_format)
        start += parameter.numel()


def check_alignment(parameters: Iterable[nn.Parameter]) -> None:
    """Raises InputError for parameters that are views into other memory."""
    for parameter in parameters:
        if not parameter.is_contiguous() or parameter.data_ptr() % ALIGNMENT_BYTES:
            raise InputError(
                f"--reduction exact: a parameter of shape {tuple(parameter.shape)} is not a "
                "contiguous tensor of its own",
                "give each parameter memory of its own, or --reduction fast",
            )


def refuse_batch_norm(model: nn.Module) -> None:
    """Raises InputError for BatchNorm: its statistics depend on which rank saw which samples."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise InputError(
                f"--reduction exact: {name or 'the model'} is a {type(module).__name__}, whose "
                "statistics depend on the world size",
                "use GroupNorm or LayerNorm, or --reduction fast",
            )
