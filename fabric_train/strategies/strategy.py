"""The base class of strategies, the ways of training one model with several processes.

    strategy = make_strategy("ddp", {})
    model, optimizer = strategy.setup(model, build_optimizer, place)
    for inputs, targets in batches:
        with strategy.sync(last=True):
            loss = loss_function(*strategy.gather(model(inputs), targets))
            strategy.backward(loss)
        strategy.finish()
        strategy.step(number)

A strategy object serves one start of a training; its dataclass fields are its options. The base
class trains in one process, and each strategy overrides what it does differently.
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
from fabric_train.sampling.sampler import plan_rank_shards

if TYPE_CHECKING:
    from lightning.fabric.strategies.strategy import Strategy as FabricStrategy

    from fabric_train.launch.precision import LossScaler
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
    has_equal_weights: bool = False
    """Whether the ranks' weights are known to be equal, so that nobody sends them again."""


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """A replica's part of one global batch, cut into virtual shards of equal size.

    ``batches`` yields the inputs and targets of each of ``shards``, in order. ``begin`` is called
    before a shard's forward pass, which runs under ``autocast``. ``loss`` returns a batch's mean.
    """

    shards: Sequence[int]
    batches: Iterator[Sequence[Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    begin: Callable[[int], None] = lambda shard: None
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class Strategy:
    """Trains in one process. ``setup`` sets ``model``, ``bare`` and ``optimizer``.

    A training loop calls ``model``; checkpoints and tests use ``bare``, the unwrapped model.
    """

    name: ClassVar[str] = "one"
    is_exact: ClassVar[bool] = False
    """Whether ``reduction: exact`` gives the same bits at any world size."""
    heals: ClassVar[bool] = False
    """Whether each rank has the whole state, so that a training goes on without a lost rank."""
    can_resize: ClassVar[bool] = True
    """Whether the training may go on with another number of processes."""
    precisions: ClassVar[frozenset[str]] = frozenset({"32-true", "bf16-mixed", "bf16-true"})
    """The precisions it trains in; any other is refused."""
    is_sharded: ClassVar[bool] = False
    """Whether ranks hold parts of the weights, so that all of them write a checkpoint."""
    has_rows: ClassVar[bool] = False
    """Whether each rank writes a part of ``memory``, into a folder that all nodes share."""
    places_model: ClassVar[bool] = False
    """Whether ``setup`` moves the weights to their devices, wherever they are before."""
    equal_rounds: ClassVar[bool] = False
    """Whether a pass waits for the other replicas, so that all replicas must make equally many
    passes: a replica with fewer shards repeats its last shard with weight 0."""

    def __post_init__(self) -> None:
        self.model: nn.Module
        self.bare: nn.Module
        self.optimizer: Optimizer
        self.place: Place
        self.virtual_shards = 1
        self.steps = 0
        """Optimizer steps so far, over all restarts; a Saver sets it when it has loaded them."""
        self.precision = "32-true"
        """The training's precision, for a strategy that chooses types itself."""
        self.scaler: LossScaler | None = None
        """Scales the loss in ``16-mixed``; None in other precisions."""

    # -- before a process group -----------------------------------------------------------------

    def check(self, world: World | None, device: Device) -> None:
        """Raises InputError, with what to do, if the strategy cannot run in this world."""

    def require(self, **least: float) -> None:
        """Raises InputError for an option that is below its least value."""
        for option, value in least.items():
            given = getattr(self, option)
            if given < value:
                raise InputError(
                    f"--strategy_options: {option}={given} of {self.name} is less than {value}",
                    f"--strategy_options.{option} {value} or more",
                )

    def build_fabric_strategy(self, device: Device) -> FabricStrategy:
        """Fabric's strategy, which makes the process group."""
        from fabric_train.launch.fabric import build_ddp

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

        All ranks must call it, with equal weights on ``place.device``. Each global batch is cut
        into ``virtual_shards`` parts over all replicas; without it into one for each replica.
        Raises InputError, with the member's name, for a model that the strategy cannot take.
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
        """Wraps a micro-batch's forward and backward pass; ``last``: this rank's last in a step."""
        return nullcontext()

    def forward(self, inputs: Tensor, *, last: bool) -> Tensor:
        """The outputs for a micro-batch, within ``sync``."""
        outputs: Tensor = self.model(inputs)
        return outputs

    def gather(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and targets for the loss, in training, validation and test alike."""
        return outputs, targets

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        """Adds one virtual shard's gradients; ``loss`` is the shard's mean."""
        (loss * (weight * self.replicas / self.virtual_shards)).backward()

    def finish(self) -> None:
        """Called after the last micro-batch; makes the gradients the global batch's mean."""

    def clip(self, max_norm: float) -> None:
        """Scales the whole model's gradient down to a norm of at most ``max_norm``."""
        clip_grad_norm_(self.bare.parameters(), max_norm)

    def step(self, number: int) -> None:
        """Updates the weights after ``number`` earlier optimizer steps, over all restarts."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps = number + 1

    def run_step(self, batch: RankBatch) -> Tensor:
        """Runs all micro-batches of a step and ``finish``; returns their mean loss, on the device.

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
        """The largest number of virtual shards that a replica takes."""
        return len(plan_rank_shards(self.virtual_shards, self.replicas - 1, self.replicas))

    # -- checkpoints and tests ------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """What a checkpoint and the run that resumes it must share, besides the program's options.

        Called after ``setup``.
        """
        return {}

    def before_save(self) -> None:
        """Prepares ``bare`` and ``optimizer`` for saving, or ``bare`` for testing.

        All ranks must call it.
        """

    def after_save(self) -> None:
        """Returns ``bare`` and ``optimizer`` to their training state, after a copy or a test."""

    def memory(self) -> dict[str, Tensor]:
        """The strategy's own tensors for a checkpoint, by name.

        Each is equal on all ranks, or a row made by ``fabric_train.share_row``. All ranks give the
        same names. Called after ``setup``, between ``before_save`` and ``after_save``.
        """
        return {}

    def load_memory(self, saved: Mapping[str, Tensor]) -> None:
        """The reverse of ``memory``; called after a checkpoint was loaded into the model.

        ``saved`` is empty if the checkpoint has no memory of this strategy. ``take_row`` reads this
        rank's row of a tensor; in a world of another size every rank gets the whole tensor.
        Tensors are in host memory.
        """

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs for a test batch, without gradients."""
        outputs: Tensor = self.bare(inputs)
        return outputs

    def gather_test(
        self, outputs: Tensor, targets: Tensor, *, counts: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The rows of a test batch that this rank scores; without ``counts`` none of its own.

        One rank scores each row. With ``equal_rounds`` all ranks must call it equally often.
        """
        rows = len(targets) if counts and self.leads_replica else 0
        return outputs[:rows], targets[:rows]

    def gather_weights(self) -> dict[str, Tensor]:
        """All weights and buffers, whole, under their names in the unwrapped model.

        All ranks must call it.
        """
        return dict(self.bare.state_dict())

    def close(self) -> None:
        """Ends background work; called last, also after an error.

        ``setup`` may not have been called. Does not wait for other ranks, which may be gone.
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
