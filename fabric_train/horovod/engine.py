"""The thread that performs Horovod's collectives in one order on all ranks; tells of long waits and
of requests that do not match.

Horovod matches requests by name, whatever order each rank makes them in. So do we: before each
collective every rank sends 16 bytes that stand for the head of its queue. Only if these differ, the
ranks exchange their whole queues and perform the first request that all have made. A rank that
leaves ends the engine on all ranks.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fabric_train.horovod.collectives import PERFORM, Channel, Collective

MIN_POLL_S, MAX_POLL_S = 0.001, 0.05
STALL_S = 60
"""A request that waits longer is reported, and again each time it has waited as long."""


class HorovodInternalError(RuntimeError):
    """A collective failed: another rank has gone, or asked for something else."""


class Handle:
    """A request that was made; ``wait`` returns its result."""

    def __init__(self, name: str, request: Collective, tensors: Sequence[Tensor]) -> None:
        self.name, self.request, self.tensors = name, request, tensors
        self._done = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self._began = _record(tensors)
        self._ended: Any = None

    @property
    def signature(self) -> tuple[Any, ...]:
        """What must be equal on all ranks."""
        free = 1 if self.request.kind == "allgather" else 0
        shapes = tuple((tuple(t.shape[free:]), t.dtype, t.device.type) for t in self.tensors)
        return self.name, self.request, shapes

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        """Sets the result or the error; the engine calls it once."""
        self._result, self._error = result, error
        self._done.set()

    def perform(self, channel: Channel) -> Any:
        """Performs the collective, on a GPU in a stream of its own; returns the result."""
        act = PERFORM[self.request.kind]
        if self._began is None:
            return act(channel, self.tensors, self.request)
        device = self.tensors[0].device
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._began)
            for tensor in self.tensors:
                if tensor.is_cuda:
                    tensor.record_stream(stream)
            result = act(channel, self.tensors, self.request)
            self._ended = stream.record_event()
        return result

    def is_done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._done.is_set()

    def wait(self) -> Any:
        """Returns the result, or raises the error. Reports a long wait on stderr."""
        every_s = float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or STALL_S)
        began_at = time.monotonic()
        while not self._done.wait(every_s):
            print(
                f"horovod: {self.name} has waited {time.monotonic() - began_at:.0f} s for the "
                "other ranks: do all of them ask for it?",
                file=sys.stderr,
                flush=True,
            )
        if self._error is not None:
            raise self._error
        if self._ended is not None:
            stream = torch.cuda.current_stream(self.tensors[0].device)
            stream.wait_event(self._ended)
            for tensor in self._result:
                if tensor.is_cuda:
                    tensor.record_stream(stream)
        return self._result


def _record(tensors: Sequence[Tensor]) -> Any:
    on_gpu = bool(tensors) and tensors[0].is_cuda
    return torch.cuda.current_stream(tensors[0].device).record_event() if on_gpu else None


class Conductor:
    """The queue of this rank's requests, and the thread that works on it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._queue: dict[str, Handle] = {}
        self._changed = threading.Condition()
        self._leaves = False
        self._error: HorovodInternalError | None = None
        self._resting = False
        self._looking_since = 0.0
        self.agreed_to_leave = channel.size == 1
        """Whether all ranks have left together, so that none waits for another."""
        self._thread = threading.Thread(target=self._work, name="horovod", daemon=True)
        if channel.size > 1:
            self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether requests can still be made; not after a peer has gone."""
        return self._error is None

    def submit(self, handle: Handle) -> Handle:
        """Queues a request; raises ValueError while one of the same name is not done yet."""
        if self.channel.size == 1:
            handle.finish(handle.perform(self.channel))
            return handle
        with self._changed:
            if self._error is not None:
                raise HorovodInternalError(str(self._error))
            if handle.name in self._queue:
                raise ValueError(
                    f"Duplicate tensor name: {handle.name} is still being processed. "
                    "Synchronize its handle first, or use a different name."
                )
            self._queue[handle.name] = handle
            self._changed.notify_all()
        return handle

    def leave(self) -> None:
        """Ends the engine on all ranks; blocks until the others leave too or make a request."""
        with self._changed:
            self._leaves = True
            self._changed.notify_all()
        if self.channel.size > 1:
            self._thread.join()

    @property
    def is_resting(self) -> bool:
        """Whether the thread is in no collective, so that the process may end."""
        with self._changed:
            return self._resting or not self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:
            # gloo appends advice to its message.
            cause = str(error).partition(" This is typically")[0]
            self._fail(f"another rank has ended, or waited for too long: {cause}")

    def _round(self) -> bool:
        """Performs one request together with all ranks; False after the last."""
        with self._changed:
            self._resting = True
            self._changed.wait_for(lambda: self._queue or self._leaves)
            self._resting = False
            leaves, head = self._leaves, next(iter(self._queue.values()), None)
        mark = _fingerprint(head.signature) if head and not leaves else 0
        tickets = self.channel.gather_numbers((leaves, mark))
        leaving = [rank for rank, (leaves, _) in enumerate(tickets) if leaves]
        if leaving:
            self.agreed_to_leave = len(leaving) == self.channel.size
            self._fail(f"rank {leaving[0]} has shut Horovod down, or has reached its end")
            return False
        if len({tuple(ticket) for ticket in tickets}) == 1 and head:
            self._perform(head)
        else:
            self._perform_common()
        return True

    def _perform_common(self) -> None:
        """Performs the first request that all ranks have made; without one, waits a moment."""
        with self._changed:
            mine = {name: handle.signature for name, handle in self._queue.items()}
        wishes = self.channel.gather_objects(mine)
        common = next((n for n in wishes[0] if all(n in wish for wish in wishes)), None)
        if common is not None:
            self._looking_since = 0.0
            with self._changed:
                handle = self._queue[common]
            if problem := _find_problem([wish[common] for wish in wishes]):
                self._drop(handle)
                handle.finish(error=HorovodInternalError(problem))
            else:
                self._perform(handle)
            return
        self._looking_since = self._looking_since or time.monotonic()
        since_s = time.monotonic() - self._looking_since
        with self._changed:
            # The others' new requests show only in the next round, so this polls.
            self._changed.wait(min(max(since_s, MIN_POLL_S), MAX_POLL_S))

    def _perform(self, handle: Handle) -> None:
        # It stays queued meanwhile, so that ``_fail`` finds it if another rank ends.
        result = handle.perform(self.channel)
        self._drop(handle)
        handle.finish(result)

    def _drop(self, handle: Handle) -> None:
        with self._changed:
            self._queue.pop(handle.name, None)

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._error = HorovodInternalError(reason)
            pending = [*self._queue.values()]
            self._queue.clear()
        for handle in pending:
            handle.finish(error=HorovodInternalError(f"{handle.name}: {reason}"))


def _fingerprint(signature: tuple[Any, ...]) -> int:
    digest = hashlib.blake2b(repr(signature).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _find_problem(signatures: Sequence[tuple[Any, ...]]) -> str:
    """Why the ranks cannot perform this request together; empty if they can."""
    wanted = signatures[0]
    for rank, signature in enumerate(signatures):
        if signature != wanted:
            return (
                f"Mismatched requests for {wanted[0]}: rank 0 asks for {_describe(wanted)}, "
                f"rank {rank} for {_describe(signature)}"
            )
    return ""


def _describe(signature: tuple[Any, ...]) -> str:
    _, request, shapes = signature
    tensors = ", ".join(f"{dtype}{list(shape)} on {device}" for shape, dtype, device in shapes)
    return f"{request.kind} ({request.op.name.lower()}, root {request.root}) of {tensors}"
