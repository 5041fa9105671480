"""Linear layers whose weights the ranks of a group share, each computing with its part.

M. Shoeybi et al. 2019, "Megatron-LM", section 3. A *column* layer computes part of its outputs, a
*row* layer takes part of its inputs, and its outputs are added up over the ranks. Between the two
each rank has its own part of the activations, outside of them all ranks have equal ones. There is
one all-reduce of activations in the forward pass, after the row layer, and one in the backward
pass, of the column layer's gradients to its inputs.

A plan says which member is which; it is a model's attribute ``tensor_plan``, or an argument:

    split_linears(model, {"*.up": "column", "*.down": "row"}, group)

If a layer's outputs are several things side by side, or groups that must not be split, the plan
says so by ``Column(blocks=3, unit=64)``: queries, keys and values, in heads of 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from fabric_train.communication.parts import Cut
from fabric_train.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Column:
    """A layer whose outputs are split: ``blocks`` equal blocks side by side, each of them split
    between groups of ``unit`` neighbouring outputs."""

    blocks: int = 1
    unit: int = 1


Plan = Mapping[str, "Column | Literal['column', 'row']"]
"""How to split the linear layers whose names match a pattern, such as ``blocks.*.up``."""


class ColumnLinear(nn.Module):
    """A linear layer that computes this rank's part of the outputs."""

    def __init__(self, whole: nn.Linear, how: Column, group: dist.ProcessGroup) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        cut = Cut(dim=0, size=whole.out_features, rank=rank, ranks=ranks, blocks=how.blocks)
        self.group = group
        self.cuts = {"weight": cut}
        self.weight = take_part(whole.weight, cut)
        self.bias: nn.Parameter | None = None
        if whole.bias is not None:
            self.cuts["bias"] = cut
            self.bias = take_part(whole.bias, cut)

    def forward(self, inputs: Tensor) -> Tensor:
        copied: Tensor = AddGradients.apply(inputs, self.group)  # type: ignore[no-untyped-call]
        return linear(copied, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer that takes this rank's part of the inputs; its outputs are whole."""

    def __init__(self, whole: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        cut = Cut(dim=1, size=whole.in_features, rank=rank, ranks=ranks)
        self.group = group
        self.cuts = {"weight": cut}
        self.weight = take_part(whole.weight, cut)
        self.bias = whole.bias

    def forward(self, inputs: Tensor) -> Tensor:
        partial = linear(inputs, self.weight)
        outputs: Tensor = AddOutputs.apply(partial, self.group)  # type: ignore[no-untyped-call]
        # After the sum, so that the bias counts once.
        return outputs if self.bias is None else outputs + self.bias.to(outputs.dtype)


class AddGradients(torch.autograd.Function):
    """Passes on inputs that are equal on all ranks, and adds up their gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return add_up(gradient, ctx.group), None


class AddOutputs(torch.autograd.Function):
    """The sum of all ranks' outputs, whose gradient is the same for each of them."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, group: dist.ProcessGroup) -> Tensor:
        return add_up(outputs, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def add_up(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of ``group``, in the type of ``values``; blocks on gloo."""
    # Gloo has no sums of bfloat16.
    is_wide = values.device.type != "cpu" or values.dtype != torch.bfloat16
    total = (values if is_wide else values.float()).clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total.to(values.dtype)


def take_part(whole: Tensor, cut: Cut) -> nn.Parameter:
    """This rank's part, as a weight of its own; the whole weight can be freed."""
    return nn.Parameter(cut.cut_out(whole.detach()), requires_grad=whole.requires_grad)


def split_linears(model: nn.Module, plan: Plan, group: dist.ProcessGroup) -> nn.Module:
    """Replaces the layers that the plan names by split ones; weights keep their names.

    All ranks must call it with equal weights, before an optimizer is built. Raises InputError, with
    the member's name, for a layer that cannot be split, before anything is changed.
    """
    layers = find_linears(model, plan, dist.get_world_size(group))
    for name, (layer, how) in layers.items():
        parent, _, last = name.rpartition(".")
        split = RowLinear(layer, group) if how == "row" else ColumnLinear(layer, how, group)
        split.train(layer.training)
        setattr(model.get_submodule(parent), last, split)
    return model


def find_linears(
    model: nn.Module, plan: Plan, ranks: int
) -> dict[str, tuple[nn.Linear, Column | Literal["row"]]]:
    """The layers that the plan names, checked for ``ranks`` ranks. Raises InputError."""
    names_of: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(weight), []).append(name)
    linears: dict[str, tuple[nn.Linear, Column | Literal["row"]]] = {}
    for pattern, how in plan.items():
        matching = [
            (name, module) for name, module in model.named_modules() if fnmatchcase(name, pattern)
        ]
        if not matching:
            raise InputError(
                f"tensor_plan: {type(model).__name__} has no member {pattern!r}",
                "print([name for name, _ in model.named_modules()]) lists the names",
            )
        for name, module in matching:
            if type(module) is not nn.Linear:
                raise InputError(
                    f"tensor_plan: {name} is a {type(module).__name__}, and only a Linear is split",
                    "leave it out of the plan: every rank then has the whole of it",
                )
            shared = [each for each in names_of[id(module.weight)] if each != f"{name}.weight"]
            if shared:
                raise InputError(
                    f"tensor_plan: {name}.weight is shared with {shared[0]}, which is not split",
                    f"leave {name} out of the plan",
                )
            layer_how = check_layer(name, module, how, ranks)
            linears[name] = (module, layer_how)
    return linears


def check_layer(
    name: str, layer: nn.Linear, how: Column | str, ranks: int
) -> Column | Literal["row"]:
    """How a layer is split. Raises InputError if the ranks would have unequal parts."""
    if how == "row":
        groups, of = layer.in_features, f"{layer.in_features} inputs"
    elif how == "column" or isinstance(how, Column):
        column = how if isinstance(how, Column) else Column()
        groups, rest = divmod(layer.out_features, column.blocks * column.unit)
        of = f"{layer.out_features} outputs"
        if column != Column():
            of += f" in {column.blocks} x {groups} groups of {column.unit}"
        if rest:
            raise InputError(
                f"tensor_plan: {name} has {layer.out_features} outputs, which are not "
                f"{column.blocks} blocks of groups of {column.unit}",
                "give blocks and unit a product that divides the outputs",
            )
    else:
        raise InputError(f"tensor_plan: {name}: {how!r} is neither column nor row")
    if groups % ranks:
        sizes = [str(size) for size in range(2, ranks) if groups % size == 0]
        raise InputError(
            f"{name} has {of}, which {ranks} processes cannot share equally",
            f"--strategy_options.tensor_size {' or '.join(sizes)}" if sizes else "--strategy fsdp",
        )
    return "row" if how == "row" else column
