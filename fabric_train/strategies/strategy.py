"""What every way of training one model with several processes offers to a training loop.

    strategy = make_strategy("ddp", {})
    model, optimizer = strategy.setup(model, build_optimizer, place)
    for inputs, targets in batches:
        with strategy.sync(last=True):
            loss = loss_function(*strategy.gather(model(inputs), targets))
            strategy.backward(loss)
        strategy.finish()
        strategy.step(number)

A strategy is one object for one start of a training, and a dataclass whose fields are its options.
The base class is one process alone; a strategy overrides what it does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from fabric_train.errors import InputError
from fabric_train.sampler import plan_rank_shards

if TYPE_CHECKING:
    from lightning.fabric.strategies.strategy import Strategy as FabricStrategy

    from fabric_train.precision import LossScaler
    from fabric_train.worker_env import World

Device = Literal["cpu", "cuda"]
EVERY_PRECISION = frozenset({"32-true", "16-mixed", "bf16-mixed", "bf16-true"})
BuildOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands among all processes of the training."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """A replica's part of one global batch, in virtual shards: equal batches of their own.

    ``batches`` yields the inputs and targets of each of ``shards`` in order; ``begin`` is called
    before a shard's forward pass, which runs under ``autocast``; ``loss`` is the mean over a batch.
    """

    shards: Sequence[int]
    batches: Iterator[Sequence[Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    begin: Callable[[int], None] = lambda shard: None
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class Strategy:
    """One process alone. ``model``, ``bare`` and ``optimizer`` are there after ``setup``.

    ``model`` is the one to call; ``bare`` is the one that checkpoints and tests see, without
    wrappers.
    """

    name: ClassVar[str] = "one"
    is_exact: ClassVar[bool] = False
    """Whether ``reduction: exact`` gives the same bits at any world size."""
    can_resize: ClassVar[bool] = True
    """Whether the training may go on with another number of processes."""
    precisions: ClassVar[frozenset[str]] = frozenset({"32-true", "bf16-mixed", "bf16-true"})
    """What it trains in; another precision is refused."""
    is_sharded: ClassVar[bool] = False
    """Whether ranks hold parts of the weights, so that all of them write a checkpoint."""
    has_rows: ClassVar[bool] = False
    """Whether each rank writes a part of ``memory``, into a folder that all nodes share."""
    places_model: ClassVar[bool] = False
    """Whether ``setup`` moves the weights to their devices, and takes them wherever they are."""
    equal_rounds: ClassVar[bool] = False
    """Whether a forward or backward pass waits for the other replicas', so that all must make
    equally many: those with fewer shards repeat their last one with weight 0."""

    def __post_init__(self) -> None:
        self.model: nn.Module
        self.bare: nn.Module
        self.optimizer: Optimizer
        self.place: Place
        self.virtual_shards = 1
        self.steps = 0
        """Optimizer steps so far, over all restarts; a Saver sets it when it has loaded them."""
        self.precision = "32-true"
        """The program's, for a strategy that chooses types itself."""
        self.scaler: LossScaler | None = None
        """What the loss is multiplied by, in ``16-mixed``."""

    # -- before a process group -----------------------------------------------------------------

    def check(self, world: World | None, device: Device) -> None:
        """Raises InputError where the strategy cannot run in this world, with what to do."""

    def require(self, **least: float) -> None:
        """Raises InputError for an option below the least value that is named here."""
        for option, value in least.items():
            given = getattr(self, option)
            if given < value:
                raise InputError(
                    f"--strategy_options: {option}={given} of {self.name} is less than {value}",
                    f"--strategy_options.{option} {value} or more",
                )

    def build_fabric_strategy(self, device: Device) -> FabricStrategy:
        """Fabric's strategy, which makes the process group."""
        from fabric_train.fabric import build_ddp

        return build_ddp(device)

    def count_replicas(self, world_size: int) -> int:
        """How many groups of processes take different samples; each holds the whole model."""
        return world_size

    def replica_of(self, rank: int, world_size: int) -> int:
        """The replica that a rank belongs to; its ranks are neighbours."""
        return rank * self.count_replicas(world_size) // world_size

    # -- the model ------------------------------------------------------------------------------

    def setup(
        self,
        model: nn.Module,
        build_optimizer: BuildOptimizer,
        place: Place,
        *,
        virtual_shards: int | None = None,
    ) -> tuple[nn.Module, Optimizer]:
        """The model to call, and its optimizer.

        All ranks must call it, with equal weights on ``place.device``. ``virtual_shards``: into how
        many parts each global batch is cut, over all replicas; without it one for each. Raises
        InputError, with the member's name, for a model that the strategy cannot take.
        """
        self.place = place
        self.virtual_shards = virtual_shards or self.replicas
        self.bare = model
        self.model = self.wrap(model)
        self.optimizer = build_optimizer(self.bare.parameters())
        return self.model, self.optimizer

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to call; may change ``model`` in place, before the optimizer is built."""
        return model

    @property
    def replicas(self) -> int:
        """How many parts of the world take different samples."""
        return self.count_replicas(self.place.world_size)

    @property
    def replica(self) -> int:
        """This rank's replica."""
        return self.replica_of(self.place.rank, self.place.world_size)

    @property
    def leads_replica(self) -> bool:
        """Whether this rank counts and reports for its replica."""
        rank, size = self.place.rank, self.place.world_size
        return rank == 0 or self.replica_of(rank - 1, size) != self.replica

    def describe(self) -> str:
        """A line about how the model is spread, after ``setup``; empty for nothing."""
        return ""

    # -- a step ---------------------------------------------------------------------------------

    def sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Around a micro-batch's forward and backward pass; ``last`` of this rank's in the step."""
        return nullcontext()

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        """The outputs for a micro-batch, within ``sync``."""
        outputs: Tensor = self.model(inputs)
        return outputs

    def gather(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss is computed on, in training, validation and test alike."""
        return outputs, targets

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        """Adds one virtual shard's gradients; ``loss`` is the shard's mean."""
        (loss * (weight * self.replicas / self.virtual_shards)).backward()

    def finish(self) -> None:
        """After the last micro-batch: the gradients are the global batch's mean."""

    def clip(self, max_norm: float) -> None:
        """Shortens the gradient of the whole model to this length."""
        clip_grad_norm_(self.bare.parameters(), max_norm)

    def step(self, number: int) -> None:
        """Updates the weights; ``number`` counts the optimizer steps before, over all restarts."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps = number + 1

    def run_step(self, batch: RankBatch) -> Tensor:
        """All micro-batches of a step, up to ``finish``: the mean of their losses, on the device.

        All ranks must call it. The ranks of a replica return the same loss.
        """
        loss_sum = torch.zeros((), device=self.place.device)
        rounds = self.count_rounds() if self.equal_rounds else len(batch.shards)
        for number in range(rounds):
            is_own = number < len(batch.shards)
            if is_own:
                shard = batch.shards[number]
                inputs, targets = next(batch.batches)
            batch.begin(shard)
            last = number == rounds - 1
            with self.sync(last=last):
                with batch.autocast():
                    outputs = self.forward(inputs, last=last)
                loss = batch.loss(*self.gather(outputs, targets))
                self.backward(loss, shard, weight=float(is_own))
            if is_own:
                loss_sum += loss.detach()
        self.finish()
        return loss_sum / len(batch.shards)

    def count_rounds(self) -> int:
        """The most virtual shards that a replica takes."""
        return len(plan_rank_shards(self.virtual_shards, self.replicas - 1, self.replicas))

    # -- checkpoints and tests ------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """What a checkpoint and the run that resumes it must share, besides the program's options.

        Called after ``setup``.
        """
        return {}

    def before_save(self) -> None:
        """Brings ``bare`` and ``optimizer`` into the state to save, or ``bare`` to test.

        All ranks must call it.
        """

    def after_save(self) -> None:
        """Brings them back into the state to train on, after they were copied or tested."""

    def memory(self) -> dict[str, Tensor]:
        """What the strategy itself has to remember in a checkpoint, by name.

        Equal on all ranks, or this rank's ``fabric_train.memory.share_row``. Every rank gives the
        same names. Called from ``setup`` on, between ``before_save`` and ``after_save``.
        """
        return {}

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        """The reverse of ``memory``; called after a checkpoint was loaded into the model.

        ``saved`` is empty if it has no memory of this strategy. A tensor of which each rank has a
        row is read by ``take_row``; in a world of another size it is whole. Tensors are in host
        memory.
        """

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs for a test batch, without gradients."""
        outputs: Tensor = self.bare(inputs)
        return outputs

    def gather_test(
        self, outputs: Tensor, targets: Tensor, *, counts: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The rows of a test batch that this rank scores; without ``counts`` its own are left out.

        Each row is scored by one rank. All ranks must call it equally often where ``equal_rounds``.
        """
        rows = len(targets) if counts and self.leads_replica else 0
        return outputs[:rows], targets[:rows]

    def gather_weights(self) -> dict[str, Tensor]:
        """All weights and buffers, whole, under the names of a model that nothing wraps.

        All ranks must call it.
        """
        return dict(self.bare.state_dict())

    def close(self) -> None:
        """Ends what runs beside the training; called last, also after an error.

        ``setup`` may not have been called. Waits for no other rank, which may be gone.
        """


def find_place(device: torch.device, world: World | None) -> Place:
    """This process' place. Without torchrun it is alone."""
    if world is None or not dist.is_initialized():
        return Place(device=device)
    return Place(
        device=device,
        rank=world.rank,
        world_size=world.world_size,
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
    )
