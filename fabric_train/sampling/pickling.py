"""Names the part of a loader that cannot be pickled for its worker processes."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import DataLoader

from fabric_train.errors import InputError

HANDED_OVER = ("dataset", "collate_fn", "worker_init_fn")
"""The members of a loader that its worker processes get."""


def check_picklable(loader: DataLoader[Any]) -> None:
    """Raises InputError that names the member of a loader that its workers cannot be sent.

    Checks only workers started by ``spawn`` or ``forkserver``, Python 3.14's default; forked
    workers need no pickle. Pickles the data set once, as the start of a worker does.
    """
    if not loader.num_workers:
        return
    method = find_start_method(loader)
    if method == "fork":
        return
    for name in HANDED_OVER:
        unpicklable = find_unpicklable(getattr(loader, name), name)
        if unpicklable:
            place, value, why = unpicklable
            raise InputError(
                f"the loader's {place} is {describe(value)}, which cannot be pickled for workers "
                f"that are started by {method}: {why}",
                "a function or a class at the top of a module, opened files and connections made "
                "in worker_init_fn, or num_workers 0",
            )


def find_start_method(loader: DataLoader[Any]) -> str:
    """How this loader's worker processes will be started."""
    context = loader.multiprocessing_context
    if context is not None:
        return str(context.get_start_method())
    # If nobody has set a method, the first in the list is Python's default.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def find_unpicklable(
    value: Any, place: str, visited: frozenset[int] = frozenset()
) -> tuple[str, Any, str] | None:
    """Place, value and reason of the innermost part that cannot be pickled; None if all can."""
    try:
        # The pickle is not kept: a data set may be as large as the memory.
        with open(os.devnull, "wb") as nowhere:
            ForkingPickler(nowhere, 2).dump(value)
    except Exception as error:
        why = str(error).partition("\n")[0] or type(error).__name__
    else:
        return None
    for name, part in list_parts(value, place):
        if id(part) not in visited and (
            unpicklable := find_unpicklable(part, name, visited | {id(value), id(part)})
        ):
            return unpicklable
    return place, value, why


def list_parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with the expression that one would type to reach it."""
    if isinstance(value, partial):
        yield f"{place}.func", value.func
        yield f"{place}.args", value.args
        yield f"{place}.keywords", value.keywords
    elif isinstance(value, dict):
        yield from ((f"{place}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{place}[{number}]", part) for number, part in enumerate(value))
    elif inspect.ismethod(value):
        yield f"{place}.__self__", value.__self__
    elif not inspect.isroutine(value) and not inspect.isclass(value):
        yield from (
            (f"{place}.{name}", part) for name, part in getattr(value, "__dict__", {}).items()
        )


def describe(value: Any) -> str:
    """A function by where it is written, anything else by its type."""
    if inspect.isfunction(value):
        what = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
        return f"{what} ({value.__code__.co_filename}:{value.__code__.co_firstlineno})"
    return f"a {type(value).__module__}.{type(value).__qualname__}"
