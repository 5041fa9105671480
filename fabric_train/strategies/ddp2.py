"""ddp2: a loss over the batch of a whole node, for contrastive and NCE losses.

Each process computes the outputs of its own samples. A differentiable gather gives every process of
a node the outputs of all of them, the loss is computed on those, and DDP averages the gradients of
all processes. The result is that of one process for each node, which holds the node's batch. Each
optimizer step has one loss for each node, however many virtual shards there are. This is what
Lightning up to 1.5 called ``ddp2``.

    class Contrastive(Ddp2):
        def training_step_end(self, outputs, targets):
            return normalize(outputs), targets

The loss and the scores are computed on what ``training_step_end``, ``validation_step_end`` and
``test_step_end`` return.

Cost, for P processes in a node and a node's outputs of n bytes: each process keeps the outputs and
their gradient, 2 n, and the activations of all its shards of a step; it receives n (P - 1) / P
bytes for the gather and as many for the gradient, besides DDP's. Every process computes the loss.

Exact: the weights are bit for bit the same for any number of processes in a node, but not for
another number of nodes, because the loss is then another function: a checkpoint of an exact
training is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fabric_train.communication.exchange import gather_batch, new_node_group
from fabric_train.errors import InputError
from fabric_train.sampling.sampler import plan_rank_shards
from fabric_train.strategies.ddp import Ddp
from fabric_train.strategies.strategy import RankBatch

Stage = Literal["training", "validation", "test"]


@dataclass
class Ddp2(Ddp):
    """Every process computes the loss on the outputs of the whole node, which it gathers;
    gradients flow back through the gather. Contrastive and NCE losses need it; for losses that
    treat samples one by one it equals ``ddp``. Subclass ``Ddp2`` to change what the loss sees:
    ``training_step_end``, ``validation_step_end``, ``test_step_end``.
    """

    name: ClassVar[str] = "ddp2"
    equal_rounds: ClassVar[bool] = True

    # -- hooks ----------------------------------------------------------------------------------

    def training_step_end(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Changes what the training loss is computed on; gets the node's outputs and targets."""
        return outputs, targets

    def validation_step_end(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a validation batch."""
        return outputs, targets

    def test_step_end(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a test batch, whose rows may be fewer on some ranks."""
        return outputs, targets

    # -- a step ---------------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        place = self.place
        self._node = new_node_group(place.rank, place.world_size, place.local_world_size)
        return super().wrap(model)

    @property
    def nodes(self) -> int:
        """How many nodes there are, each with a loss of its own."""
        return self.place.world_size // self.place.local_world_size

    def gather(
        self, outputs: Tensor, targets: Tensor, stage: Stage = "training"
    ) -> tuple[Tensor, Tensor]:
        """The node's outputs and targets, after the hook of ``stage``; waits for the node's ranks.

        All ranks of a node must call it equally often. The outputs may be any number of rows.
        """
        gathered = gather_batch(outputs, self._node), gather_batch(targets, self._node)
        if stage == "training":
            return self.training_step_end(*gathered)
        if stage == "validation":
            return self.validation_step_end(*gathered)
        return self.test_step_end(*gathered)

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        if self.exact:
            raise InputError(
                "--strategy ddp2 with reduction exact: a shard's gradient comes from the loss of "
                "the whole node",
                "call strategy.run_step in place of sync, gather, backward and finish",
            )
        super().backward(loss, shard, weight=weight)

    def run_step(self, batch: RankBatch) -> Tensor:
        # One forward pass for each shard, because random numbers are drawn for each.
        outputs, targets = [], []
        for shard in batch.shards:
            inputs, wanted = next(batch.batches)
            batch.begin(shard)
            with batch.autocast():
                outputs.append(self.model(inputs))
            targets.append(wanted)
        rows = [count * len(targets[0]) for count in self._counts]
        everything = gather_batch(torch.cat(targets), self._node, rows)
        if self.exact:
            return self._step_exactly(batch, outputs, everything, rows)
        whole = gather_batch(torch.cat(outputs), self._node, rows)
        loss = batch.loss(*self.training_step_end(whole, everything))
        # DDP takes the mean over all ranks, and each rank of a node has the node's loss.
        (loss * (sum(self._counts) * self.nodes / self.virtual_shards)).backward()
        self.finish()
        return loss.detach()

    @property
    def _counts(self) -> list[int]:
        """How many virtual shards each rank of this node takes."""
        place = self.place
        first = place.rank - place.rank % place.local_world_size
        return [
            len(plan_rank_shards(self.virtual_shards, rank, place.world_size))
            for rank in range(first, first + place.local_world_size)
        ]

    def _step_exactly(
        self, batch: RankBatch, outputs: list[Tensor], targets: Tensor, rows: list[int]
    ) -> Tensor:
        # Every rank computes the same gradient of the node's outputs, and takes its own rows of it:
        # a sum over the ranks would round otherwise for another number of them.
        detached = torch.cat([each.detach() for each in outputs])
        whole = gather_batch(detached, self._node, rows).requires_grad_()
        weights = dict(self.bare.named_parameters())
        for weight in weights.values():
            weight.grad = None
        loss = batch.loss(*self.training_step_end(whole, targets))
        loss.backward()
        if direct := [name for name, weight in weights.items() if weight.grad is not None]:
            raise InputError(
                f"--reduction exact with ddp2: the loss itself uses {direct[0]}, "
                "whose gradient has no place in the order of the virtual shards",
                "use it in the model's forward, or --reduction fast",
            )
        assert whole.grad is not None
        before = sum(rows[: self.place.local_rank])
        own_gradient = whole.grad[before : before + rows[self.place.local_rank]]
        parts = own_gradient.split(len(outputs[0]))
        for shard, output, part in zip(batch.shards, outputs, parts, strict=True):
            # The reduction takes the mean over all shards; the loss is a mean over the node's.
            self._reduction.backward((output * (part * sum(self._counts))).sum(), shard)
        self.finish()
        return loss.detach()

    # -- checkpoints and tests ------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        return {"ddp2": f"{self.nodes} nodes"} if self.exact else {}

    def gather_test(
        self, outputs: Tensor, targets: Tensor, *, counts: bool = True
    ) -> tuple[Tensor, Tensor]:
        rows = len(targets) if counts else 0
        outputs, targets = self.gather(outputs[:rows], targets[:rows], "test")
        rows = len(targets) if self.place.local_rank == 0 else 0
        return outputs[:rows], targets[:rows]
