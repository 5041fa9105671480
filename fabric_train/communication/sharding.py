"""A model cut into parts, one for each process: PyTorch's FSDP2, which modules are gathered in one
piece, and which weights it refuses.

    shard(model, plan_units(model))
    optimizer = AdamW(model.parameters())
    for number, (inputs, targets) in enumerate(batches, start=1):
        with sync_gradients(model, last=number == len(batches)):
            (loss_function(model(inputs), targets) / len(batches)).backward()
    optimizer.step()

S. Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models";
Y. Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fabric_train.errors import InputError

Units = Literal["blocks", "size", "whole"]
LEAST_ELEMENTS = 10_000
"""A module with fewer elements is no unit of its own."""
_LISTS = (nn.ModuleList, nn.ModuleDict)
"""Containers without a forward pass, whose weights nothing would gather."""
_NO_UNITS = (*_LISTS, nn.Linear)
"""A Linear's output is a view of another tensor if its input has more than two dimensions. An
in-place operation on a unit's output, such as a ReLU, then fails in the backward pass (torch
2.13)."""


def plan_units(
    model: nn.Module, by: Units = "blocks", *, least_elements: int = LEAST_ELEMENTS
) -> list[str]:
    """Names of the modules whose weights are gathered, and dropped again, in one piece.

    ``blocks``: the members of the model's outermost Sequentials and lists. ``size``: the smallest
    modules with ``least_elements`` outside of the units in them. ``whole``: no units. A weight in
    no unit is gathered for the whole forward and backward pass. A module with fewer elements is no
    unit, nor is a Linear by itself, nor one that shares a weight with a module elsewhere. Inner
    units come first.
    """
    if by == "whole":
        return []
    units_by_name = find_blocks(model) if by == "blocks" else find_by_size(model, least_elements)
    users = count_users(model)
    return [
        name
        for name, unit in units_by_name
        if not isinstance(unit, _NO_UNITS)
        and count_elements(unit.parameters()) >= least_elements
        and all(users[weight] == count for weight, count in count_users(unit).items())
    ]


def find_blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The members of outermost containers."""
    is_container = isinstance(module, (nn.Sequential, *_LISTS))
    for name, child in module.named_children():
        if is_container and not isinstance(child, _LISTS):
            yield prefix + name, child
        else:
            yield from find_blocks(child, f"{prefix}{name}.")


def find_by_size(model: nn.Module, least_elements: int) -> Iterator[tuple[str, nn.Module]]:
    """Modules that are large enough without the units in them."""
    taken: set[nn.Parameter] = set()
    # Children before parents.
    for name, module in reversed(list(model.named_modules())):
        own_parameters = set(module.parameters()) - taken
        if (
            name
            and not isinstance(module, _NO_UNITS)
            and count_elements(own_parameters) >= least_elements
        ):
            taken |= own_parameters
            yield name, module


def count_elements(weights: Iterable[Tensor]) -> int:
    """The number of elements in all weights."""
    return sum(weight.numel() for weight in weights)


def count_users(module: nn.Module) -> dict[nn.Parameter, int]:
    """How many names each weight has."""
    users: dict[nn.Parameter, int] = {}
    for _, weight in module.named_parameters(remove_duplicate=False):
        users[weight] = users.get(weight, 0) + 1
    return users


def shard(
    model: nn.Module,
    units: Sequence[str] = (),
    *,
    mesh: DeviceMesh | None = None,
    reshard: bool = True,
    mixed: MixedPrecisionPolicy | None = None,
    offload: OffloadPolicy | None = None,
) -> nn.Module:
    """Cuts the model's weights along their first dimension over the mesh, in place.

    A mesh of two dimensions holds copies along the first, and parts along the second.
    Without ``reshard`` a unit's weights stay whole from a step's first forward pass to its last
    backward pass. An optimizer must be made afterwards. Raises InputError, with the weight's name,
    for a model that FSDP2 cannot take.
    """
    refuse(model, units)
    for module in (*(model.get_submodule(name) for name in units), model):
        fully_shard(
            module,
            mesh=mesh,
            # None: the root's own weights stay whole, as the backward pass begins with them.
            reshard_after_forward=None if reshard else False,
            mp_policy=mixed or MixedPrecisionPolicy(),
            offload_policy=offload or OffloadPolicy(),
        )
    return model


def refuse(model: nn.Module, units: Sequence[str]) -> None:
    """Raises InputError if FSDP2 would fail at the start, or in the first step."""
    dtypes: dict[str, tuple[str, torch.dtype]] = {}
    for name, weight in model.named_parameters():
        if weight.ndim == 0:
            raise InputError(
                f"{name} is a single number, and FSDP cuts weights along their first dimension",
                f"give {name} the shape [1] in the model, or --strategy ddp",
            )
        if not weight.is_contiguous():
            raise InputError(
                f"{name} is not contiguous in memory, as FSDP needs it",
                f"make {name} contiguous with weight.contiguous(), or --strategy ddp",
            )
        if not weight.requires_grad:
            continue
        unit = max((each for each in units if name.startswith(f"{each}.")), key=len, default="")
        first, dtype = dtypes.setdefault(unit, (name, weight.dtype))
        if dtype != weight.dtype:
            raise InputError(
                f"{name} is {weight.dtype} and {first} is {dtype}, but FSDP gathers both in one "
                "piece",
                "give all weights one type (--precision bf16-mixed computes in bfloat16), or "
                "--strategy ddp",
            )


@contextmanager
def sync_gradients(model: nn.Module, *, last: bool, reshard: bool = True) -> Iterator[None]:
    """Around a micro-batch's forward and backward pass: only the step's last one sends gradients.

    Without ``reshard`` the weights stay whole for the next micro-batch. Use it in place of Fabric's
    ``no_backward_sync(model, enabled=not last)``, which leaves sending switched off, so that a loop
    without micro-batches afterwards never sends.
    """
    if last or not isinstance(model, FSDPModule):
        yield
        return
    model.set_requires_gradient_sync(False)
    if not reshard:
        model.set_reshard_after_backward(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        if not reshard:
            model.set_reshard_after_backward(True)


def drop_gathered(model: nn.Module) -> None:
    """Leaves each process with its own part again, after a forward pass without a backward one."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gather_whole(model: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, whole, in host memory, under the names of the model that was cut.

    Blocks; all ranks must call it.
    """
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
    }
