"""Pipeline parallelism: each process has some layers, and micro-batches go through all of them.

``pipeline_size`` neighbours in rank (by default all processes) hold one copy of the model and take
the same samples, cut into ``microbatches``; several copies are data parallel. An ``nn.Sequential``
is cut between its children, another model where its ``pipeline_plan`` allows it
(``fabric_train.communication.pipeline``); ``charlm`` has such a plan.

With P processes in a pipeline, M micro-batches and v stages each: weights, gradients and optimizer
state take about 1/P of the memory each. Each process waits (P - 1) / (v * M + P - 1) of the time.
Activations are kept for M micro-batches by gpipe, for at most P by 1f1b, for at most
P + (P - 1) / v by interleaved_1f1b. Bytes that a rank sends in a step: 2 * v * A at most (v * A at
both ends), with A the bytes of the activations between two stages for its whole batch; the first
and the last send the gradient of a weight that both have; and with R copies each sends
2 * (R - 1) / R of its gradients. These are few bytes, between neighbours, so a slower network does.

Not supported: BatchNorm, whose statistics depend on the micro-batches; exact sums; and the dropout
of one process (each process draws its own numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.communication.parts import clip_over_ranks, gather_members
from fabric_train.communication.pipeline import PipelineStages
from fabric_train.communication.reduction import assign_gradients, flatten_gradients
from fabric_train.errors import InputError
from fabric_train.strategies.strategy import EVERY_PRECISION, Device, RankBatch, Strategy
from fabric_train.strategies.tp import check_size, make_mesh

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Pipeline(Strategy):
    """Each of ``pipeline_size`` neighbours holds some layers (``torch.distributed.pipelining``).
    With P processes, M micro-batches and v stages in each, a process is idle for (P - 1) / (v
    M + P - 1) of the time. Any ``nn.Sequential`` can be cut; another model says in what order
    its members are called:

    ```python
    model.pipeline_plan = {"embed": ("characters",), "blocks": (), "to_logits": ("norm",)}
    ```

    BatchNorm is refused. In a loop of your own call ``run_step``: no process can run the whole
    model's backward pass.
    """

    name: ClassVar[str] = "pipeline"
    can_resize: ClassVar[bool] = False
    is_sharded: ClassVar[bool] = True
    precisions: ClassVar[frozenset[str]] = EVERY_PRECISION

    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b"] = "1f1b"
    """`gpipe` keeps the activations of all micro-batches, `1f1b` of at most P, `interleaved_1f1b`
    needs several stages in a process and idles less."""
    microbatches: int = 0
    """Equal parts that a pipeline's batch is cut into; 0 for two per process."""
    stages_per_rank: int = 0
    """Stages of each process; 0 for two with interleaved_1f1b and for one otherwise."""
    pipeline_size: int = 0
    """How many processes share one copy of the model; 0 for all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stages: PipelineStages | None = None
        self._data: dist.ProcessGroup | None = None

    def check(self, world: World | None, device: Device) -> None:
        self.check_world(world.world_size if world else 1)

    def check_world(self, world_size: int) -> None:
        """Raises InputError for options that do not fit the number of processes."""
        self.require(pipeline_size=0, microbatches=0, stages_per_rank=0)
        check_size(self.name, "pipeline_size", self.pipeline_size, world_size)
        size = self.pipeline_size or world_size
        if self.stages_per_rank > 1 and self.schedule != "interleaved_1f1b":
            raise InputError(
                f"--strategy pipeline: schedule={self.schedule} has one stage for each process, "
                f"not stages_per_rank={self.stages_per_rank}",
                "--strategy_options.schedule interleaved_1f1b",
            )
        count = self.microbatches or 2 * size
        if self.schedule == "1f1b" and count < size:
            raise InputError(
                f"--strategy pipeline: 1f1b needs a micro-batch for each of {size} processes, not "
                f"microbatches={count}",
                f"--strategy_options.microbatches {size}, or --strategy_options.schedule gpipe",
            )
        rounds = max(1, count // size)
        if self.schedule == "interleaved_1f1b" and count % rounds:
            raise InputError(
                f"--strategy pipeline: interleaved_1f1b needs {rounds} rounds of equal length, but "
                f"microbatches={count} is not a multiple of {rounds}",
                f"--strategy_options.microbatches {rounds * size}",
            )

    def count_replicas(self, world_size: int) -> int:
        return max(1, world_size // (self.pipeline_size or world_size))

    def wrap(self, model: nn.Module) -> nn.Module:
        world_size = self.place.world_size
        self.check_world(world_size)
        if world_size == 1:
            return model
        size = world_size // self.replicas
        mesh = make_mesh(self.place.device, self.replicas, world_size, "pipeline")
        self._stages = PipelineStages(
            model,
            mesh.get_group("pipeline"),
            schedule=self.schedule,
            microbatches=self.microbatches or 2 * size,
            stages_per_rank=self.stages_per_rank
            or (2 if self.schedule == "interleaved_1f1b" else 1),
        )
        if self.replicas > 1:
            self._data = mesh.get_group("data")
        return model

    def describe(self) -> str:
        if self._stages is None:
            return ""
        stages = " | ".join(", ".join(names) for names in self._stages.layout)
        return f"copies of the model: {self.replicas}, in stages of {stages}"

    def run_step(self, batch: RankBatch) -> Tensor:
        if self._stages is None:
            return super().run_step(batch)
        parts = [next(batch.batches) for _ in batch.shards]
        inputs, targets = (torch.cat(list(each)) for each in zip(*parts, strict=True))
        batch.begin(batch.shards[0])
        # A seed for each process, or all stages would drop the same units.
        torch.manual_seed(int(torch.randint(2**62, ())) + self._stages.rank)
        loss = self._stages.run(
            inputs,
            targets,
            batch.loss,
            scale=len(batch.shards) / self.virtual_shards,
            context=batch.autocast,
        )
        self.finish()
        return loss

    def backward(self, loss: Tensor, shard: int = 0, *, weight: float = 1.0) -> None:
        if self._stages is not None:
            raise InputError(
                "--strategy pipeline: no process has the whole model, so none can run its backward "
                "pass",
                "strategy.run_step(RankBatch(...)), or --strategy fsdp",
            )
        super().backward(loss, shard, weight=weight)

    def finish(self) -> None:
        if self._data is None:
            return
        weights = [weight for weight in self.bare.parameters() if weight.requires_grad]
        flat = flatten_gradients(weights)
        dist.all_reduce(flat, group=self._data)
        assign_gradients(weights, flat)

    def clip(self, max_norm: float) -> None:
        if self._stages is None:
            super().clip(max_norm)
        else:
            parameters = list(self.bare.parameters())
            clip_over_ranks(parameters, self._stages.counted, self._stages.group, max_norm)

    def predict(self, inputs: Tensor) -> Tensor:
        return super().predict(inputs) if self._stages is None else self._stages.predict(inputs)

    def gather_weights(self) -> dict[str, Tensor]:
        weights = dict(self.bare.state_dict())
        return weights if self._stages is None else gather_members(weights, self._stages.group)

    def close(self) -> None:
        if self._stages is not None:
            self._stages.close()
