"""Frees gloo's groups before the interpreter ends: else the process aborts or hangs at its exit.

A group's threads need Python's lock once more when the group is freed. While the interpreter
ends they do not get it, and the process aborts ("terminate called without an active exception")
or hangs. Seen with torch 2.13, under torchrun too.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from types import FunctionType

_GROUPS = "torch.distributed.distributed_c10d"
_PARALLEL = "torch.nn.parallel.distributed"
_FUNCTIONS = "torch.distributed.nn.functional"


def let_go() -> None:
    """Frees the groups of this process. Call it after all that the script does at its exit."""
    if (groups := sys.modules.get(_GROUPS)) is None:
        return
    with contextlib.suppress(Exception):
        # Without a peer NCCL's would wait here, and they end well as they are.
        if all(backend == "gloo" for backend, _ in groups._world.pg_map.values()):
            _let_go_of_models()
            _let_go_of_defaults(groups.ProcessGroup)
            if groups.is_initialized():
                groups.destroy_process_group()


def _let_go_of_models() -> None:
    """Clears what holds the group in models that were wrapped for DDP."""
    if (parallel := sys.modules.get(_PARALLEL)) is not None:
        for held in gc.get_objects():
            if issubclass(type(held), parallel.DistributedDataParallel):
                for name in ("reducer", "logger", "process_group"):
                    vars(held).pop(name, None)


def _let_go_of_defaults(kind: type) -> None:
    """Clears default arguments of torch's functions that hold a group: those of functions that were
    imported while a group was there."""
    for held in vars(sys.modules.get(_FUNCTIONS, sys)).values():
        if isinstance(held, FunctionType) and held.__defaults__:
            defaults = (None if isinstance(d, kind) else d for d in held.__defaults__)
            held.__defaults__ = tuple(defaults)
