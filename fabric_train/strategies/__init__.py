"""The strategies, ways of training one model with several processes, by name: which module has
each, what to use instead of names that other libraries know, and which options a strategy takes.

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
    "ddp_spawn": "ddp:DdpSpawn",
    "ddp_fork": "ddp:DdpFork",
    "ddp_notebook": "ddp:DdpNotebook",
    "dp": "one_process:Dp",
    "ddp2": "ddp2:Ddp2",
    "fsdp": "fsdp:Fsdp",
    "tp": "tp:Tp",
    "fsdp+tp": "fsdp:FsdpTp",
    "pipeline": "pipeline:Pipeline",
    "model_parallel": "one_process:ModelParallel",
    "local_sgd": "local_sgd:LocalSgd",
    "diloco": "local_sgd:Diloco",
    "powersgd": "hooks:PowerSgd",
    "fp16": "hooks:Fp16",
    "bf16": "hooks:Bf16",
    "bagua:gradient_allreduce": "ddp:GradientAllreduce",
    "bagua:bytegrad": "hooks:ByteGrad",
    "bagua:decentralized": "decentralized:Decentralized",
    "bagua:low_precision_decentralized": "decentralized:LowPrecisionDecentralized",
    "bagua:qadam": "qadam:QAdam",
    "bagua:async": "decentralized:Asynchronous",
    "deepspeed": "deepspeed:DeepSpeed",
    "xla": "one_process:Xla",
}
"""Each strategy's module and class, by the name that ``--strategy`` takes."""

INSTEAD: dict[str, tuple[str, str]] = {
    "auto": ("it would choose differently on different machines", "--strategy ddp"),
    "ddp_find_unused_parameters_true": (
        "it is for models that leave weights out of some steps, which ddp does not support",
        "--strategy ddp, and multiply outputs that are not needed by 0, not leave them out",
    ),
    "ddp_sharded": ("it was FairScale's, which is no longer maintained", "--strategy fsdp"),
    "fsdp2": ("fsdp is FSDP2 here", "--strategy fsdp"),
    "fsdp_cpu_offload": (
        "CPU offload is an option of fsdp, not a strategy",
        "--strategy fsdp --strategy_options.offload true",
    ),
    "deepspeed_stage_2": (
        "the stage and where the state lies are options of deepspeed",
        "--strategy deepspeed",
    ),
    "deepspeed_stage_3": ("fsdp cuts the weights too, within torch", "--strategy fsdp"),
    "horovod": (
        "a Horovod script brings its own loop, so it is no choice of this program",
        "--strategy ddp here; in a Horovod script, import fabric_train.horovod "
        "in place of horovod.torch",
    ),
    "bagua": (
        "Bagua is several algorithms, and one of them has to be named",
        "--strategy bagua:gradient_allreduce, or :bytegrad, :decentralized, "
        ":low_precision_decentralized, :qadam, :async",
    ),
    "tpu": ("TPUs are reached through torch_xla", "--strategy xla, where torch_xla is installed"),
}
"""Names of other programs that ``--strategy`` refuses: why, and what to write instead."""


def check_name(name: str) -> None:
    """Raises InputError for an unknown strategy name, and says what to write instead."""
    if name in STRATEGIES:
        return
    if name in INSTEAD:
        why, fix = INSTEAD[name]
        raise InputError(f"--strategy {name}: {why}", fix)
    near = difflib.get_close_matches(name, STRATEGIES, n=2)
    fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(STRATEGIES)}"
    raise InputError(f"--strategy {name}: there is no such strategy", fix)


def make_strategy(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """Builds the strategy ``name`` with these option values.

    Raises InputError for an unknown name or option, or for a value of the wrong type.
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
    """Whether an option's value has the type of its field."""
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
