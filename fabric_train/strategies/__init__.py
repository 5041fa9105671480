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
    "ddp_spawn": "ddp_spawn:DdpSpawn",
    "ddp_fork": "ddp_spawn:DdpFork",
    "ddp_notebook": "ddp_spawn:DdpNotebook",
    "dp": "dp:Dp",
    "ddp2": "ddp2:Ddp2",
    "fsdp": "fsdp:Fsdp",
    "tp": "tp:Tp",
    "fsdp+tp": "fsdp_tp:FsdpTp",
    "pipeline": "pipeline:Pipeline",
    "model_parallel": "model_parallel:ModelParallel",
    "local_sgd": "local_sgd:LocalSgd",
    "diloco": "diloco:Diloco",
    "powersgd": "powersgd:PowerSgd",
    "fp16": "half:Fp16",
    "bf16": "half:Bf16",
    "bagua:gradient_allreduce": "gradient_allreduce:GradientAllreduce",
    "bagua:bytegrad": "bytegrad:ByteGrad",
    "bagua:decentralized": "decentralized:Decentralized",
    "bagua:low_precision_decentralized": "decentralized:LowPrecisionDecentralized",
    "bagua:qadam": "qadam:QAdam",
    "bagua:async": "asynchronous:Asynchronous",
    "deepspeed": "deepspeed:DeepSpeed",
    "xla": "xla:Xla",
}
"""Each strategy's module and class, by the name that ``--strategy`` takes."""

_SHARDED = (
    "it was FairScale's sharding of optimizer states and gradients, which is no longer maintained",
    "--strategy fsdp",
)
_FSDP1 = ("it was the first FullyShardedDataParallel, which FSDP2 replaces", "--strategy fsdp")
_TPU = ("TPUs are reached through torch_xla", "--strategy xla, where torch_xla is installed")
_STAGE = "the stage and where the state lies are options of deepspeed"
_UNUSED = (
    "it is for models that leave weights out of some steps, which ddp does not support",
    "--strategy ddp, and multiply outputs that are not needed by 0 in place of leaving them out",
)
_GONE = "its package is no longer maintained, and Lightning dropped it"

INSTEAD: dict[str, tuple[str, str]] = {
    "auto": ("it would choose differently on different machines", "--strategy ddp"),
    "single_device": ("one process alone needs no name", "leave --strategy out"),
    "ddp_cpu": ("the device is a setting of its own", "--strategy ddp --accelerator cpu"),
    "ddp_find_unused_parameters_true": _UNUSED,
    "ddp_find_unused_parameters_false": (
        "ddp does not look for unused weights anyway",
        "--strategy ddp",
    ),
    "ddp_spawn_find_unused_parameters_false": (
        "ddp_spawn does not look for unused weights anyway",
        "--strategy ddp_spawn",
    ),
    "ddp_sharded": _SHARDED,
    "ddp_sharded_spawn": _SHARDED,
    "ddp_sharded_find_unused_parameters_false": _SHARDED,
    "sharded": _SHARDED,
    "fairscale": _SHARDED,
    "ddp_fully_sharded": _FSDP1,
    "fully_sharded": _FSDP1,
    "fsdp_native": _FSDP1,
    "fsdp1": _FSDP1,
    "fsdp2": ("fsdp is FSDP2 here", "--strategy fsdp"),
    "fsdp_cpu_offload": (
        "CPU offload is an option of fsdp, not a strategy",
        "--strategy fsdp --strategy_options.offload true",
    ),
    "fsdp_native_full_shard_offload": (
        "CPU offload is an option of fsdp, not a strategy",
        "--strategy fsdp --strategy_options.offload true",
    ),
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
    "gradient_allreduce": ("it is one of Bagua's", "--strategy bagua:gradient_allreduce"),
    "bytegrad": ("it is one of Bagua's", "--strategy bagua:bytegrad"),
    "decentralized": ("it is one of Bagua's", "--strategy bagua:decentralized"),
    "low_precision_decentralized": (
        "it is one of Bagua's",
        "--strategy bagua:low_precision_decentralized",
    ),
    "qadam": ("it is one of Bagua's", "--strategy bagua:qadam"),
    "async": ("it is one of Bagua's", "--strategy bagua:async"),
    "onebit_adam": ("it is qadam with one bit", "--strategy bagua:qadam --strategy_options.bits 1"),
    "fp16_compress": ("only the short name is accepted", "--strategy fp16"),
    "fp16_compress_hook": ("only the short name is accepted", "--strategy fp16"),
    "bf16_compress": ("only the short name is accepted", "--strategy bf16"),
    "bf16_compress_hook": ("only the short name is accepted", "--strategy bf16"),
    "powerSGD": ("only the short name is accepted", "--strategy powersgd"),
    "powersgd_hook": ("only the short name is accepted", "--strategy powersgd"),
    "powerSGD_hook": ("only the short name is accepted", "--strategy powersgd"),
    "rpc_sequential": ("it was FairScale's pipeline, which torch replaces", "--strategy pipeline"),
    "rpc": ("it was FairScale's pipeline, which torch replaces", "--strategy pipeline"),
    "tensor_parallel": ("only the short name is accepted", "--strategy tp"),
    "post_local_sgd": ("it is local_sgd after a warm-up", "--strategy local_sgd"),
    "deepspeed_stage_1": (_STAGE, "--strategy deepspeed --strategy_options.stage 1"),
    "deepspeed_stage_2": (_STAGE, "--strategy deepspeed"),
    "deepspeed_stage_2_offload": (
        _STAGE,
        "--strategy deepspeed --strategy_options.offload true",
    ),
    "deepspeed_stage_3": ("fsdp cuts the weights too, within torch", "--strategy fsdp"),
    "deepspeed_stage_3_offload": (
        "fsdp cuts the weights too, within torch",
        "--strategy fsdp --strategy_options.offload true",
    ),
    "tpu": _TPU,
    "tpu_spawn": _TPU,
    "tpu_spawn_debug": _TPU,
    "single_tpu": _TPU,
    "xla_debug": _TPU,
    "xla_fsdp": _TPU,
    "colossalai": (_GONE, "--strategy fsdp"),
    "collaborative": (f"{_GONE} (Hivemind)", "--strategy local_sgd, or --strategy diloco"),
    "hivemind": (_GONE, "--strategy local_sgd, or --strategy diloco"),
    "ipu": (f"{_GONE} (Graphcore)", "--strategy ddp on GPUs or CPUs"),
    "ipu_strategy": (f"{_GONE} (Graphcore)", "--strategy ddp on GPUs or CPUs"),
    "hpu": ("Habana's accelerators are not supported", "--strategy ddp on GPUs or CPUs"),
    "hpu_parallel": ("Habana's accelerators are not supported", "--strategy ddp on GPUs or CPUs"),
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
