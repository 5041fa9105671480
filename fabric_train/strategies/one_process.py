"""One process for one model: on all GPUs of its node (``dp``), with layers on several devices
(``model_parallel``), or on an XLA device (``xla``).

## dp

One process, which splits each batch over the GPUs of its node.

torch's DataParallel, as old scripts use it: for each micro-batch the first GPU sends the weights to
the others, each computes a part, and the first computes the loss of the whole batch. ``ddp`` with a
process for each GPU does the same faster; ``dp`` is there for code that must stay one process.

Cost, for a model of m bytes on g GPUs: (g - 1) m bytes out to the replicas for each forward pass
and as many back as gradients, all through the first GPU, which alone holds the optimizer's state
and all outputs; the others hold m bytes while they compute. One interpreter drives all GPUs, so
Python's lock limits small models.

## model_parallel

One model's layers on several devices of one process, the naive kind.

For a model that does not fit into one GPU, on one node. Each layer computes where its weights are,
and activations are moved there: by name (``--strategy_options.layers
"blocks.[0-5]=cuda:0,blocks.*=cuda:1"``, the first pattern that matches decides) or by size, where
the members of each ``Sequential`` and ``ModuleList`` are dealt out in their order, about equally
many bytes for each device. What is not placed stays on the first device.

Cost: one device computes at a time, so a step on n devices takes as long as on one that held the
model, plus the moves, and each device is idle for (n - 1) / n of the step. An activation is moved
once for each change of device within a ``Sequential``, and to the device and back for each placed
layer elsewhere. Memory: each device holds its layers' weights, gradients, optimizer state and
activations. Use ``pipeline`` to keep all devices busy, ``fsdp`` to hold parts on each.

A layer that uses the weights of a layer on another device fails; weights that are shared by layers
on different devices are refused.

## xla

One process on one XLA device, such as a TPU core, where torch_xla is installed.

The model is traced for each step and runs when the weights are updated. Several processes are
refused. This project's tests run it against a stand-in for torch_xla, never on a TPU.

Cost: the weights, gradients and optimizer state lie on the device; nothing is sent to others. The
first step compiles, and so does each new shape of a batch.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fabric_train.errors import InputError
from fabric_train.strategies.strategy import Device, RankBatch, Strategy

if TYPE_CHECKING:
    from fabric_train.worker_env import World


@dataclass
class Dp(Strategy):
    """torch's DataParallel: one process splits each batch over the GPUs of its node. ``ddp`` does
    the same faster. Several processes, and CPUs, are refused. No test has run it on several
    GPUs.
    """

    name: ClassVar[str] = "dp"

    def check(self, world: World | None, device: Device) -> None:
        if world is not None and world.world_size > 1:
            raise InputError(
                f"--strategy dp is one process on one node, and there are {world.world_size}"
                + (f" on {world.num_nodes} nodes" if world.num_nodes > 1 else ""),
                "--strategy ddp, or --strategy ddp2 if the loss compares the samples of a batch",
            )
        if device == "cpu":
            raise InputError(
                "--strategy dp splits a batch over GPUs, and there is none",
                "--strategy ddp with several processes: "
                "torchrun --nproc-per-node 2 -m train --strategy ddp",
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        first = self.place.device.index or 0
        others = [index for index in range(torch.cuda.device_count()) if index != first]
        return nn.DataParallel(model, device_ids=[first, *others])


Placement = Mapping[str, torch.device]
"""The device of each placed layer, by name; a layer inside a placed one has no entry."""


@dataclass
class ModelParallel(Strategy):
    """One process places layers on several devices, which take turns: ``pipeline`` and ``fsdp``
    keep all of them busy.
    """

    name: ClassVar[str] = "model_parallel"
    places_model: ClassVar[bool] = True

    layers: str = ""
    """Patterns of layers' names and their devices, ``blocks.0=cuda:0,blocks.*=cuda:1``."""
    devices: str = ""
    """The devices to deal layers out to by size, ``cuda:0,cuda:1``; without it all GPUs."""

    def check(self, world: World | None, device: Device) -> None:
        if world is not None and world.world_size > 1:
            raise InputError(
                f"--strategy model_parallel is one process, and there are {world.world_size}",
                "--strategy fsdp, or --strategy pipeline, whose processes compute at once",
            )
        if self.layers and self.devices:
            raise InputError(
                "--strategy_options: layers (by name) and devices (by size) exclude each other",
                "give one of them",
            )
        if self.layers:
            parse_layers(self.layers)
        elif len(self.list_devices()) < 2:
            raise InputError(
                "--strategy model_parallel needs several devices, and "
                f"{', '.join(map(str, self.list_devices())) or 'no GPU'} is there",
                "--strategy_options.devices cuda:0,cpu to use the host's memory too, "
                "or --strategy ddp",
            )

    def list_devices(self) -> list[torch.device]:
        """The devices to deal layers out to."""
        if self.devices:
            return [parse_device(text, "devices") for text in self.devices.split(",")]
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]

    def wrap(self, model: nn.Module) -> nn.Module:
        home = self.place.device
        if self.layers:
            placement = place_by_name(model, parse_layers(self.layers))
        else:
            placement = place_by_size(model, self.list_devices())
        refuse_shared(model, placement, home)
        self.moves = place_layers(model, placement, home)
        self._bytes = count_bytes(model, placement, home)
        return model

    def describe(self) -> str:
        held = ", ".join(f"{device} {held / 2**20:.1f} MiB" for device, held in self._bytes.items())
        return (
            f"model_parallel: {held} of weights; {self.moves} moves in a forward pass; one device "
            "computes at a time"
        )


def parse_layers(text: str) -> list[tuple[str, torch.device]]:
    """The pairs of pattern and device in ``text``; raises InputError for another form."""
    rules = []
    for rule in text.split(","):
        pattern, equals, device = rule.strip().partition("=")
        if not (pattern and equals and device):
            raise InputError(
                f"--strategy_options.layers: {rule.strip()!r} is not NAME=DEVICE",
                '--strategy_options.layers "blocks.[0-5]=cuda:0,blocks.*=cuda:1"',
            )
        rules.append((pattern, parse_device(device, "layers")))
    return rules


def parse_device(text: str, option: str) -> torch.device:
    """The device that ``text`` names; raises InputError if it is not there."""
    try:
        device = torch.device(text.strip())
    except RuntimeError:
        raise InputError(
            f"--strategy_options.{option}: {text.strip()!r} is no device", "cuda:0, cuda:1, or cpu"
        ) from None
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(
            f"--strategy_options.{option}: {device} is not there, {count} CUDA devices are visible",
            "name others, or cpu",
        )
    return device


def place_by_name(model: nn.Module, rules: Sequence[tuple[str, torch.device]]) -> Placement:
    """Places each layer, with all layers inside it, by the first rule that matches its name.

    Raises InputError for a rule that is no layer's first match.
    """
    placement: dict[str, torch.device] = {}
    used = set()
    names = [name for name, _ in model.named_modules() if name]
    for name in names:
        for number, (pattern, device) in enumerate(rules):
            if fnmatchcase(name, pattern):
                used.add(number)
                if not is_inside(name, placement):
                    placement[name] = device
                break
    for number, (pattern, _) in enumerate(rules):
        if number not in used:
            near = difflib.get_close_matches(pattern, names, n=1)
            raise InputError(
                f"--strategy_options.layers: {pattern!r} matches no layer, or only layers that "
                "earlier patterns match",
                f"did you mean {near[0]}?" if near else f"layers are {', '.join(names[:8])}",
            )
    return placement


def place_by_size(model: nn.Module, devices: Sequence[torch.device]) -> Placement:
    """Deals members of containers out in order, about equally many bytes for each device."""
    units = dict(find_units(model))
    sizes = [size_of(unit) for unit in units.values()]
    total, before = sum(sizes), 0
    if not total:
        raise InputError(
            "--strategy model_parallel: the model has no Sequential and no ModuleList whose "
            "members could be dealt out",
            '--strategy_options.layers "NAME=cuda:0,OTHER=cuda:1"',
        )
    placement = {}
    for name, size in zip(units, sizes, strict=True):
        # A unit goes to the device whose share of the bytes holds the unit's middle.
        place = len(devices) * (2 * before + size) // (2 * total)
        placement[name] = devices[min(place, len(devices) - 1)]
        before += size
    return placement


def find_units(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The members of the outermost containers."""
    is_container = isinstance(model, nn.Sequential | nn.ModuleList)
    for name, child in model.named_children():
        if is_container:
            yield prefix + name, child
        else:
            yield from find_units(child, f"{prefix}{name}.")


def size_of(module: nn.Module) -> int:
    """Bytes of weights and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def is_inside(name: str, placement: Placement) -> bool:
    """Whether a layer or weight is a placed layer or lies inside one."""
    return find_layer(name, placement) is not None


def find_layer(name: str, placement: Placement) -> str | None:
    """The placed layer that a layer or weight lies in."""
    return next((each for each in placement if f"{name}.".startswith(f"{each}.")), None)


def device_of(name: str, placement: Placement, home: torch.device) -> torch.device:
    """Where a layer or weight lies."""
    layer = find_layer(name, placement)
    return home if layer is None else placement[layer]


def refuse_shared(model: nn.Module, placement: Placement, home: torch.device) -> None:
    """Raises InputError for a weight that layers on different devices share."""
    first: dict[int, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(weight), name)
        if device_of(other, placement, home) != device_of(name, placement, home):
            raise InputError(
                f"--strategy model_parallel: {other} and {name} are one weight, but they would lie "
                f"on {device_of(other, placement, home)} and {device_of(name, placement, home)}",
                "--strategy_options.layers with both on one device, or --strategy fsdp",
            )


def count_bytes(model: nn.Module, placement: Placement, home: torch.device) -> dict[str, int]:
    """Bytes of weights and buffers by device."""
    held: dict[str, int] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        device = str(device_of(name, placement, home))
        held[device] = held.get(device, 0) + tensor.numel() * tensor.element_size()
    return held


def place_layers(model: nn.Module, placement: Placement, home: torch.device) -> int:
    """Moves the weights, and makes each placed layer move its inputs and outputs.

    Returns how many moves from device to device a forward pass makes.
    """
    for name, module in model.named_modules():
        if name in placement:
            module.to(placement[name])
        elif not is_inside(name, placement):
            module._apply(mover(home), recurse=False)
    moves = 0
    for name, device in placement.items():
        came_from = find_neighbour(model, name, placement, -1) or home
        goes_to = None if find_neighbour(model, name, placement, 1) else home
        module = model.get_submodule(name)
        module.register_forward_pre_hook(take_to(device), with_kwargs=True)
        if goes_to is not None:
            module.register_forward_hook(give_to(goes_to))
        moves += (came_from != device) + (goes_to is not None and goes_to != device)
    return moves


def find_neighbour(
    model: nn.Module, name: str, placement: Placement, distance: int
) -> torch.device | None:
    """The device of the placed layer at this distance from layer ``name`` in its Sequential."""
    parent, _, child = name.rpartition(".")
    container = model.get_submodule(parent)
    if not isinstance(container, nn.Sequential):
        return None
    names = list(container._modules)
    place = names.index(child) + distance
    if not 0 <= place < len(names):
        return None
    return placement.get(f"{parent}.{names[place]}" if parent else names[place])


def mover(device: torch.device) -> Callable[[Any], Any]:
    """A function that moves a tensor, and returns any other value unchanged."""
    # A non-blocking copy to the CPU returns before the numbers are there.
    non_blocking = device.type == "cuda"

    def move(value: Any) -> Any:
        return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value

    return move


def take_to(device: torch.device) -> Callable[..., tuple[Any, Any]]:
    """A hook that moves all arguments of a layer to its device."""

    def take_inputs(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tree_map(mover(device), args), tree_map(mover(device), kwargs)

    return take_inputs


def give_to(device: torch.device) -> Callable[..., Any]:
    """A hook that moves all outputs of a layer to ``device``."""

    def give(module: nn.Module, args: Any, output: Any) -> Any:
        return tree_map(mover(device), output)

    return give


@dataclass
class Xla(Strategy):
    """One process on one XLA device, such as a TPU core. Where ``torch_xla`` is missing, the error
    says how to install it. The strategy has never run on a TPU.
    """

    name: ClassVar[str] = "xla"
    places_model: ClassVar[bool] = True

    def check(self, world: World | None, device: Device) -> None:
        if importlib.util.find_spec("torch_xla") is None:
            raise InputError(
                "--strategy xla: the package torch_xla is not installed",
                "on a machine with a TPU: pip install 'torch_xla[tpu]' of torch's version "
                f"({torch.__version__.partition('+')[0]} here); on GPUs and CPUs --strategy ddp",
            )
        if world is not None and world.world_size > 1:
            raise InputError(
                f"--strategy xla is one process, and there are {world.world_size}",
                "nproc_per_node 1 and one node",
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        self._xla: Any = import_module("torch_xla")
        self._host = self.place.device
        self.place = replace(self.place, device=self._xla.device())
        return model.to(self.place.device)

    def run_step(self, batch: RankBatch) -> Tensor:
        moved = ([each.to(self.place.device) for each in pair] for pair in batch.batches)
        return super().run_step(replace(batch, batches=moved)).to(self._host)

    def step(self, number: int) -> None:
        super().step(number)
        self._xla.sync()

    def predict(self, inputs: Tensor) -> Tensor:
        return super().predict(inputs.to(self.place.device)).to(self._host)
