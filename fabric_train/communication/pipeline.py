"""A model cut into stages, each on its own process, which work on micro-batches at the same time.

Built on ``torch.distributed.pipelining``. A model is a row of layers: the children of an
``nn.Sequential``, or what its attribute ``pipeline_plan`` names in order, with the other members
that each layer uses:

    model.pipeline_plan = {"embed": ("characters",), "blocks": (), "to_logits": ("characters",)}

A name is a method of the model, a module, or an ``nn.Sequential`` whose children are layers of
their own. Each process keeps the members of its stages only, under their names in the whole model.

Schedules: *gpipe* runs all forward passes, then all backward passes (Y. Huang et al. 2019,
"GPipe"); *1f1b* begins a backward pass as soon as it can (D. Narayanan et al. 2019, "PipeDream");
*interleaved_1f1b* gives each process several stages that are not neighbours (D. Narayanan et al.
2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.modules.batchnorm import _BatchNorm

from fabric_train.communication.exchange import exchange
from fabric_train.communication.parts import STAGE, find_device
from fabric_train.errors import InputError

ScheduleName = Literal["gpipe", "1f1b", "interleaved_1f1b"]
Loss = Callable[[Tensor, Tensor], Tensor]
SCHEDULES: dict[str, type[Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
}


@dataclass(frozen=True)
class Layer:
    """A step of a model's forward pass: a method or a module, and the members that it uses."""

    name: str
    members: tuple[str, ...]


class StageModule(nn.Module):
    """Neighbouring layers of a model, one after the other, under ``context``."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.context: Callable[[], AbstractContextManager[object]] = nullcontext
        names = dict.fromkeys(name for layer in layers for name in layer.members)
        members = [find_member(model, name) for name in names]
        self.members = nn.ModuleList(each for each in members if isinstance(each, nn.Module))
        self.weights = nn.ParameterList(each for each in members if isinstance(each, nn.Parameter))
        # In a tuple, which does not register the model as a member of the stage.
        self.calls = tuple(find_member(model, layer.name) for layer in layers)

    def forward(self, states: Tensor) -> Tensor:
        with self.context():
            for call in self.calls:
                states = call(states)
        return states


class PipelineStages:
    """This process' stages of a model, and the schedule over all of them.

    ``model`` loses the members of other processes' stages. ``group``: the pipeline's ranks, in the
    order of their first stages. All ranks call the same methods with the same batches. Raises
    InputError, with the member's name, for a model that cannot be cut, and leaves it as it was.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        *,
        schedule: ScheduleName = "1f1b",
        microbatches: int = 4,
        stages_per_rank: int = 1,
    ) -> None:
        self.group, self.microbatches = group, microbatches
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = find_device(group)
        self._kind = schedule
        self.count = self.size * stages_per_rank
        stages = cut_layers(model, list_layers(model), self.count)
        self.layout = [[layer.name for layer in stage] for stage in stages]
        numbers = range(self.rank, self.count, self.size)
        self.owners = find_owners(model, stages, self.size)
        keep_members(model, [layer for number in numbers for layer in stages[number]])
        self._stages = {number: StageModule(model, stages[number]) for number in numbers}
        self._weights = dict(model.named_parameters())
        self._schedule: Any = None
        self._shape: torch.Size | None = None
        self._loss: Loss

    @property
    def counted(self) -> list[Tensor]:
        """The weights that no lower rank has too, so that each counts once."""
        return [
            weight for name, weight in self._weights.items() if self.owners[name][0] == self.rank
        ]

    def run(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        *,
        scale: float = 1.0,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Tensor:
        """Adds gradients of ``scale`` times the batch's mean loss; returns that mean on all ranks.

        ``loss`` is the mean over a micro-batch. ``context`` surrounds the forward passes. The
        gradients must be empty before.
        """
        for stage in self._stages.values():
            stage.context = context
        if self._shape != inputs.shape:
            self._build(inputs)
        factor = scale / self.microbatches
        self._loss = lambda outputs, targets: loss(outputs, targets) * factor
        losses: list[Tensor] = []
        arguments = (inputs,) if 0 in self._stages else ()
        if self.count - 1 in self._stages:
            self._schedule.step(*arguments, target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*arguments)
        self._add_tied()
        total = torch.zeros((), device=self.device)
        if losses:
            total += torch.stack(losses).detach().sum() / scale
        dist.broadcast(total, self._global_rank(self.size - 1), group=self.group)
        return total

    def predict(self, inputs: Tensor) -> Tensor:
        """The last stage's outputs, on all ranks, without gradients; a batch of any size."""
        states = inputs
        with torch.no_grad():
            for number in range(self.count):
                if number:
                    states = self._send(states, (number - 1) % self.size, number % self.size)
                if number in self._stages:
                    states = self._stages[number](states)
        return self._spread(states, self.size - 1)

    def close(self) -> None:
        """Drops what refers to the process group."""
        self._schedule = None

    def _build(self, inputs: Tensor) -> None:
        """The schedule for batches of this shape; the first step finds the other shapes."""
        if not len(inputs) or len(inputs) % self.microbatches:
            fits = [n for n in range(1, len(inputs) + 1) if len(inputs) % n == 0]
            raise InputError(
                f"a pipeline cannot cut a batch of {len(inputs)} samples into "
                f"microbatches={self.microbatches} equal parts",
                f"--strategy_options.microbatches {' or '.join(map(str, fits))}",
            )
        made = [
            PipelineStage(stage, number, self.count, self.device, group=self.group)
            for number, stage in self._stages.items()
        ]
        self._schedule = SCHEDULES[self._kind](
            made if self._kind == "interleaved_1f1b" else made[0],
            self.microbatches,
            # Looks the loss up in each step, as a later step may bring another.
            loss_fn=lambda outputs, targets: self._loss(outputs, targets),
            # The loss is divided instead, which saves going through all gradients.
            scale_grads=False,
        )
        self._shape = inputs.shape

    def _add_tied(self) -> None:
        """Adds up the gradients of weights that several ranks have, in the order of ranks."""
        for name, weight in self._weights.items():
            ranks = self.owners[name]
            if len(ranks) == 1 or not weight.requires_grad:
                continue
            own_gradient = (
                torch.zeros_like(weight) if weight.grad is None else weight.grad.contiguous()
            )
            parts = {
                rank: own_gradient if rank == self.rank else torch.empty_like(own_gradient)
                for rank in ranks
            }
            peers = [rank for rank in ranks if rank != self.rank]
            for work in exchange(
                [(own_gradient, peer) for peer in peers],
                [(parts[peer], peer) for peer in peers],
                self.group,
            ):
                work.wait()
            weight.grad = torch.stack([parts[rank] for rank in ranks]).sum(0)

    def _send(self, states: Tensor, source: int, destination: int) -> Tensor:
        """Sends ``states`` from rank ``source`` to ``destination``; other ranks keep theirs."""
        if source == destination or self.rank not in (source, destination):
            return states
        if self.rank == source:
            peer = self._global_rank(destination)
            header = [(states.shape, states.dtype)]
            dist.send_object_list(header, peer, group=self.group)
            dist.send(states.contiguous(), peer, group=self.group)
            return states
        peer, outline = self._global_rank(source), [None]
        dist.recv_object_list(outline, peer, group=self.group)
        received = self._empty(outline[0])
        dist.recv(received, peer, group=self.group)
        return received

    def _spread(self, states: Tensor, source: int) -> Tensor:
        """The states of rank ``source``, on all ranks."""
        first, is_source = self._global_rank(source), self.rank == source
        header: list[Any] = [(states.shape, states.dtype) if is_source else None]
        dist.broadcast_object_list(header, first, group=self.group)
        spread = states.contiguous() if is_source else self._empty(header[0])
        dist.broadcast(spread, first, group=self.group)
        return spread

    def _empty(self, header: Any) -> Tensor:
        shape, dtype = header
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)


def list_layers(model: nn.Module) -> list[Layer]:
    """The layers of a model in their order; raises InputError for one that has no such order."""
    plan: Mapping[str, tuple[str, ...]] | None = getattr(model, "pipeline_plan", None)
    if plan is None and isinstance(model, nn.Sequential):
        plan = {name: () for name, _ in model.named_children()}
    if plan is None:
        raise InputError(
            f"--strategy pipeline: the model {type(model).__name__} is no nn.Sequential and has no "
            "pipeline_plan that names its layers in order",
            "give it one (fabric_train.communication.pipeline), or --strategy fsdp",
        )
    layers: list[Layer] = []
    for name, members in plan.items():
        member = find_member(model, name)
        if isinstance(member, nn.Sequential | nn.ModuleList):
            inner = [f"{name}.{child}" for child, _ in member.named_children()]
            layers += [Layer(each, (each, *members)) for each in inner]
        else:
            own_layer = (name,) if isinstance(member, nn.Module) else ()
            layers.append(Layer(name, (*own_layer, *members)))
    check_members(model, layers)
    return layers


def find_member(model: nn.Module, name: str) -> Any:
    """A member or a method of a model; raises InputError if it has none of that name."""
    member: Any = model
    for part in name.split("."):
        member = getattr(member, part, None)
    if member is None:
        raise InputError(f"pipeline_plan: {type(model).__name__} has no member {name!r}")
    return member


def check_members(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Raises InputError for a member that no layer has, or that micro-batches change."""
    known = [name for layer in layers for name in layer.members]
    for name in known:
        find_member(model, name)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise InputError(
                f"--strategy pipeline: {name or 'the model'} is a {type(module).__name__}, whose "
                "statistics depend on how a batch is cut into micro-batches",
                "use GroupNorm or LayerNorm, or --strategy fsdp",
            )
    for name in [*dict(model.named_parameters()), *dict(model.named_buffers())]:
        if not is_below(name, known):
            raise InputError(
                f"pipeline_plan: no layer of {type(model).__name__} has the member {name}",
                f'name it with the method that uses it: "method": ("{name.partition(".")[0]}",)',
            )


def is_below(name: str, members: Sequence[str]) -> bool:
    """Whether a name is one of the members or inside of one."""
    return any(name == member or name.startswith(f"{member}.") for member in members)


def cut_layers(model: nn.Module, layers: Sequence[Layer], count: int) -> list[list[Layer]]:
    """Stages of neighbouring layers, cut so that the largest has as few weights as possible.

    Raises InputError for a model with fewer layers that have weights than stages.
    """
    groups: list[list[Layer]] = []
    sizes: list[int] = []
    for layer in layers:
        size = sum(
            weight.numel()
            for name, weight in model.named_parameters()
            if is_below(name, layer.members)
        )
        # A stage without weights would have no optimizer.
        if groups and (not size or not sizes[-1]):
            groups[-1].append(layer)
            sizes[-1] += size
        else:
            groups.append([layer])
            sizes.append(size)
    if len(groups) < count:
        raise InputError(
            f"--strategy pipeline: {type(model).__name__} has {len(groups)} layers with weights, "
            f"too few for {count} stages",
            f"{len(groups)} stages or fewer, by --strategy_options.pipeline_size",
        )
    bounds = split_evenly(sizes, count)
    return [
        [layer for group in groups[first:last] for layer in group]
        for first, last in pairwise(bounds)
    ]


def split_evenly(sizes: Sequence[int], count: int) -> list[int]:
    """Where to cut a row into ``count`` parts, none empty, so that the largest sum is least."""
    best: dict[tuple[int, int], tuple[int, list[int]]] = {(0, 0): (0, [0])}
    for parts in range(1, count + 1):
        for end in range(parts, len(sizes) + 1):
            best[parts, end] = min(
                (max(before, sum(sizes[begin:end])), [*bounds, end])
                for begin in range(parts - 1, end)
                for before, bounds in [best.get((parts - 1, begin), (0, []))]
                if (parts - 1, begin) in best
            )
    return best[count, len(sizes)][1]


def find_owners(
    model: nn.Module, stages: Sequence[Sequence[Layer]], size: int
) -> dict[str, tuple[int, ...]]:
    """The ranks that have each weight and buffer, by name.

    Raises InputError for a weight with two names that would be on different ranks.
    """
    owners: dict[str, tuple[int, ...]] = {}
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    named |= dict(model.named_buffers(remove_duplicate=False))
    first_name: dict[int, str] = {}
    for name, tensor in named.items():
        ranks = {
            number % size
            for number, stage in enumerate(stages)
            if is_below(name, [member for layer in stage for member in layer.members])
        }
        owners[name] = tuple(sorted(ranks))
        other = first_name.setdefault(id(tensor), name)
        if owners[other] != owners[name]:
            raise InputError(
                f"--strategy pipeline: {name} and {other} are one weight, and their stages are on "
                "different processes",
                "name the member once, with both methods that use it, in pipeline_plan",
            )
    return owners


def keep_members(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Takes all other members out of a model; the names of those that stay do not change."""
    kept = [name for layer in layers for name in layer.members]

    def prune(module: nn.Module, prefix: str) -> None:
        for name, child in list(module.named_children()):
            full = prefix + name
            if is_below(full, kept):
                continue
            if any(member.startswith(f"{full}.") for member in kept):
                prune(child, f"{full}.")
            else:
                setattr(module, name, nn.Identity())
        for tensors_by_name in (module._parameters, module._buffers):
            for name in tensors_by_name:
                if not is_below(prefix + name, kept):
                    tensors_by_name[name] = None

    prune(model, "")
    setattr(model, STAGE, True)
