"""The ways of training one model with several processes, each in a module of its own.

``import fabric_train.strategies`` imports no torch, so that a wrong name is refused at once.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from fabric_train.errors import InputError

if TYPE_CHECKING:
    from fabric_train.strategies.strategy import Strategy

STRATEGIES = {
    "ddp": "ddp:Ddp",
    "local_sgd": "local_sgd:LocalSgd",
    "diloco": "diloco:Diloco",
    "fp16": "half:Fp16",
    "bf16": "half:Bf16",
    "powersgd": "powersgd:PowerSgd",
    "bagua:gradient_allreduce": "gradient_allreduce:GradientAllreduce",
    "bagua:bytegrad": "bytegrad:ByteGrad",
    "bagua:decentralized": "decentralized:Decentralized",
    "bagua:low_precision_decentralized": "decentralized:LowPrecisionDecentralized",
    "bagua:qadam": "qadam:QAdam",
    "bagua:async": "asynchronous:Asynchronous",
}
"""Module and class by the name that ``--strategy`` takes."""

INSTEAD: dict[str, str] = {
    "ddp_cpu": "--strategy ddp, which trains on CPUs where there is no GPU",
    "ddp2": "",
    "bagua": "--strategy bagua:ALGORITHM with gradient_allreduce, bytegrad, decentralized, "
    "low_precision_decentralized, qadam or async, which need no bagua installed",
    "gradient_allreduce": "--strategy bagua:gradient_allreduce, or ddp, which is the same",
    "bytegrad": "--strategy bagua:bytegrad",
    "decentralized": "--strategy bagua:decentralized",
    "low_precision_decentralized": "--strategy bagua:low_precision_decentralized",
    "qadam": "--strategy bagua:qadam",
    "async": "--strategy bagua:async",
    "onebit_adam": "--strategy bagua:qadam --strategy_options.bits 1",
    "fp16_compress": "--strategy fp16",
    "bf16_compress": "--strategy bf16",
    "fp16_compress_hook": "--strategy fp16",
    "bf16_compress_hook": "--strategy bf16",
    "powersgd_hook": "--strategy powersgd",
    "powerSGD_hook": "--strategy powersgd",
    "powerSGD": "--strategy powersgd",
}
"""What to write for a name that current libraries have dropped."""


def check_name(name: str) -> None:
    """Raises InputError, with what to write instead, for a name that is no strategy's."""
    if name in STRATEGIES:
        return
    fix = INSTEAD.get(name) or ""
    if not fix:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(STRATEGIES)}"
    raise InputError(f"--strategy {name}: there is no such strategy", fix)


def make_strategy(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of that name, with these values of its fields.

    Raises InputError for a name or an option that it does not have, or a value of a wrong type.
    """
    check_name(name)
    module, _, class_name = STRATEGIES[name].partition(":")
    kind: type[Strategy] = getattr(import_module(f"{__name__}.{module}"), class_name)
    known, hints = [field.name for field in dataclasses.fields(kind)], get_type_hints(kind)
    for option, value in (options or {}).items():
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            raise InputError(
                f"--strategy {name} has no option {option!r}",
                f"did you mean {near[0]}?"
                if near
                else f"it has {', '.join(known)}"
                if known
                else "leave it out",
            )
        if not is_of_type(value, hints[option]):
            raise InputError(
                f"--strategy_options: {option}={value!r} of {name} is not {describe(hints[option])}"
            )
    return kind(**(options or {}))


def is_of_type(value: object, hint: Any) -> bool:
    """Whether an option's value is what its field says."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def describe(hint: Any) -> str:
    """What a field takes, in words."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(hint))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names[hint]
