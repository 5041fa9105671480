"""The Horovod context of this process: its starter, process groups and engine."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from fabric_train.horovod.collectives import Channel
from fabric_train.horovod.engine import Conductor, read_stall_limit_s
from fabric_train.horovod.starters import Starter, find_starter


@dataclass(kw_only=True)
class Context:
    """What ``init`` built."""

    starter: Starter
    engine: Conductor
    owns_group: bool
    names: dict[str, int]
    """How many requests without a name were made, by kind."""


_context: Context | None = None
_store: Store | None = None
"""The store where the ranks meet, opened once: if rank 0 opened a new one for each ``init``, a
faster rank could still find the old one, with values of ranks that have left."""
_meetings = 0
_exit_code = 0


def init() -> None:
    """Joins all processes of the job; blocks until they are there. A second call does nothing.

    Uses the process group of torch.distributed, or makes one. Raises InputError if the environment
    contradicts itself.
    """
    global _context
    if _context is not None:
        return
    starter = find_starter(os.environ)
    owns_group = not dist.is_initialized() and starter.size > 1
    if owns_group:
        _make_group(starter)
    engine = Conductor(_open_channel(starter))
    _context = Context(starter=starter, engine=engine, owns_group=owns_group, names={})
    _watch_the_end()


def _make_group(starter: Starter) -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(starter.local_rank % torch.cuda.device_count())
    if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    global _store, _meetings
    _store = _store or starter.open_store()
    _meetings += 1
    store = PrefixStore(f"horovod-{_meetings}", _store)
    dist.init_process_group(backend, store=store, rank=starter.rank, world_size=starter.size)


def _open_channel(starter: Starter) -> Channel:
    """Makes groups for the engine alone, so that the script's collectives do not mix in."""
    if starter.size == 1:
        return Channel()
    limit = timedelta(seconds=read_stall_limit_s())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    return Channel(
        rank=starter.rank,
        size=starter.size,
        data=dist.new_group(backend=backend, timeout=limit),
        control=dist.new_group(backend="gloo", timeout=limit),
    )


def get() -> Context:
    """The context; raises ValueError before ``init``."""
    if _context is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _context


def is_initialized() -> bool:
    """Whether ``init`` was called."""
    return _context is not None


def shutdown() -> None:
    """Leaves the other ranks; blocks until they leave too or make a request.

    Their requests fail from then on. ``init`` may be called again after all have left.
    """
    global _context
    context, _context = _context, None
    if context is None:
        return
    context.engine.leave()
    if context.owns_group and context.engine.agreed_to_leave:
        # A group that is freed while another rank still talks to it may abort that process.
        dist.barrier()
        dist.destroy_process_group()


def _watch_the_end() -> None:
    """Has ``_end`` called when the process ends, and notes if an exception ends it."""
    show = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _exit_code
        _exit_code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        show(kind, error, trace)

    sys.excepthook = note
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    """Leaves the other ranks when the interpreter ends, unless an exception ended it."""
    if not _exit_code:
        shutdown()
        return
    # The others see the connections close, and so they fail after this process, not before it.
    if _context is not None and not _context.engine.is_resting:
        # The engine's thread is inside a collective. It would abort the process if it came back to
        # an interpreter that has ended.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
