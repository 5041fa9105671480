"""The worker's side of a look: how many collectives torch's flight recorder remembers, and what
the worker writes when the agent asks: the stacks of its threads, and the recorder's dump.

A thread waits until somebody opens a FIFO. It starts with the first process group, as torch's own
threads do, takes no signals, and while it waits holds no descriptor that a script could close.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.agent.atomic_write import write_atomically

BUFFER = "200"
"""Collectives that each worker remembers, unless the user's variables say otherwise."""
VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The size, as newer and older versions of torch read it; either says that the user chose one."""
_NEWER = "_dump_fr_trace"
GROUPS = "torch.distributed.distributed_c10d"
_C = "torch._C._distributed_c10d"
_MAKES_GROUP = "_new_process_group_helper"
_DUMPS = ("_dump_nccl_trace", _NEWER)
"""NCCL's recorder, and that of all other backends."""


def settings(c10d: Any) -> dict[str, str]:
    """The variable that switches the recorder on; ``c10d`` is ``torch._C._distributed_c10d``.

    Only the one that this torch reads: newer versions warn about the older name.
    """
    if any(name in os.environ for name in VARIABLES):
        return {}
    return {VARIABLES[0 if hasattr(c10d, _NEWER) else 1]: BUFFER}


def asking(heartbeat: Path) -> Path:
    """The FIFO by which the agent asks, beside the worker's heartbeat."""
    return heartbeat.with_name(f"asking-{heartbeat.name}")


def answer(heartbeat: Path) -> Path:
    """What the worker answers with: torch's trace as JSON, or ``{"missing": why}``."""
    return heartbeat.with_name(f"collectives-{heartbeat.name}")


def answered_stacks(heartbeat: Path) -> Path:
    """The stacks of all threads, as ``py-spy dump --json`` has them; written before ``answer``."""
    return heartbeat.with_name(f"threads-{heartbeat.name}")


def answer_from_first_group(module: Any, heartbeat: Path) -> None:
    """Starts to answer when the script makes its first group; ``module`` is distributed_c10d."""
    make: Callable[..., Any] | None = getattr(module, _MAKES_GROUP, None)
    if make is None:
        return

    def make_first(*args: Any, **kwargs: Any) -> Any:
        setattr(module, _MAKES_GROUP, make)
        with contextlib.suppress(OSError, RuntimeError):
            _start(heartbeat)
        return make(*args, **kwargs)

    setattr(module, _MAKES_GROUP, make_first)


def _start(heartbeat: Path) -> None:
    os.mkfifo(asking(heartbeat))
    # The new thread inherits this mask, so that it takes no signal that is sent to the process.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # Not by ``threading``, whose threads scripts count.
        _thread.start_new_thread(_answer_always, (heartbeat,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _answer_always(heartbeat: Path) -> None:
    while True:
        try:
            # Ended by whoever asks, or with the process.
            os.close(os.open(asking(heartbeat), os.O_RDONLY))
        except OSError:
            # The agent has gone, and its folder with it.
            return
        # Errors of torch's recorder must not show up in the script's output.
        with contextlib.suppress(Exception):
            _write_stacks(answered_stacks(heartbeat))
        with contextlib.suppress(Exception):
            write_trace(answer(heartbeat))


def _write_stacks(path: Path) -> None:
    """Writes what each thread does. Raises OSError.

    It holds Python's lock meanwhile, so that no frame changes while it is read: faulthandler reads
    without the lock, and may crash a worker whose threads run.
    """
    import json
    import threading

    main = threading.main_thread().ident
    # Without threading's own lock, which the thread that hangs may hold.
    names = {ident: thread.name for ident, thread in dict(vars(threading)["_active"]).items()}
    threads = [
        {
            "thread_name": "MainThread" if ident == main else names.get(ident),
            "os_thread_id": ident,
            "frames": [
                {
                    "name": frame.f_code.co_name,
                    "filename": frame.f_code.co_filename,
                    "line": line or 0,
                }
                for frame, line in traceback.walk_stack(newest)
            ],
        }
        for ident, newest in sys._current_frames().items()
    ]
    write_atomically(path, json.dumps(threads))


def write_trace(path: Path) -> None:
    """Writes what this process remembers; nothing where torch has made no group. Raises OSError."""
    if _C not in sys.modules or GROUPS not in sys.modules:
        return
    import json

    write_atomically(path, json.dumps(_read_trace(sys.modules[_C]), default=str))


def _read_trace(c10d: Any) -> dict[str, Any]:
    import pickle

    merged: dict[str, Any] = {}
    for name in _DUMPS:
        if dump := getattr(c10d, name, None):
            # Without stacks: to name their frames torch would import torch._inductor, for seconds.
            trace = pickle.loads(dump(includeStackTraces=False))
            merged = {**trace, **merged, "entries": [*merged.get("entries", ()), *trace["entries"]]}
    return merged or {"missing": f"torch {sys.modules['torch'].__version__} has no recorder here"}
