"""The thread that performs collectives, in one order on all ranks.

Horovod matches requests by name, whatever order each rank makes them in. So do we: before each
collective every rank sends 16 bytes that stand for the head of its queue. Only if these differ, the
ranks exchange their whole queues and perform the first request that all have made. A rank that has
joined takes part with zeros; a rank that leaves ends the engine on all ranks.
"""

from __future__ import annotations

import enum
import hashlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fabric_train.horovod.collectives import PERFORM, Channel, Collective, ReduceOp
from fabric_train.horovod.errors import HorovodInternalError

STALL_LIMIT_S = 24 * 3600.0
"""How long ranks wait for each other; a dead rank is noticed at once."""
MIN_POLL_S, MAX_POLL_S = 0.001, 0.05
ROWS_MAY_DIFFER = ("allgather", "alltoall")


class Presence(enum.IntEnum):
    """Whether a rank makes requests, has joined, or leaves."""

    ACTIVE = 0
    JOINED = 1
    LEAVING = 2


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
        free = 1 if self.request.kind in ROWS_MAY_DIFFER else 0
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
        every_s = float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or 60)
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


def read_stall_limit_s() -> float:
    """HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, a day unless it is set."""
    return float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or 0) or STALL_LIMIT_S


class Conductor:
    """The queue of this rank's requests, and the thread that works on it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._queue: dict[str, Handle] = {}
        self._changed = threading.Condition()
        self._presence = Presence.ACTIVE
        self._device: int | None = None
        self._seen = [Presence.ACTIVE] * channel.size
        self._joining: Handle | None = None
        self._last_joined = channel.rank
        self._error: HorovodInternalError | None = None
        self._resting = False
        self._looking_since = 0.0
        self._stall_limit_s = read_stall_limit_s()
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

    def join(self, device: int | None = None) -> int:
        """Takes part in the others' requests until all have joined; returns the last rank to join.

        ``device``: the CUDA device of what this rank contributes.
        """
        if self.channel.size == 1:
            return 0
        with self._changed:
            if self._error is not None:
                raise HorovodInternalError(str(self._error))
            self._joining = joining = Handle("join", Collective(kind="barrier"), ())
            self._presence = Presence.JOINED
            self._device = device
            self._changed.notify_all()
        return int(joining.wait())

    def leave(self) -> None:
        """Ends the engine on all ranks; blocks until the others leave too or make a request."""
        with self._changed:
            self._presence = Presence.LEAVING
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
            self._changed.wait_for(lambda: self._queue or self._presence)
            self._resting = False
            head = next(iter(self._queue.values()), None)
            # Queued requests come before a join, but not before leaving.
            leaving = self._presence is Presence.LEAVING
            mine = Presence.ACTIVE if head and not leaving else self._presence
        mark = _fingerprint(head.signature) if head and mine is Presence.ACTIVE else 0
        tickets = self.channel.gather_numbers((mine, mark))
        presences = [Presence(presence) for presence, _ in tickets]
        if Presence.LEAVING in presences:
            gone = presences.index(Presence.LEAVING)
            self.agreed_to_leave = set(presences) == {Presence.LEAVING}
            self._fail(f"rank {gone} has shut Horovod down, or has reached its end")
            return False
        self._note_joins(presences)
        if set(presences) == {Presence.JOINED}:
            self._end_join()
        elif len({tuple(ticket) for ticket in tickets}) == 1 and head:
            self._perform(head)
        else:
            return self._perform_common(presences)
        return True

    def _perform_common(self, presences: list[Presence]) -> bool:
        """Performs the first request that all active ranks have made; False if they gave up."""
        with self._changed:
            mine = {name: handle.signature for name, handle in self._queue.items()}
        since_s = time.monotonic() - self._looking_since if self._looking_since else 0.0
        told = self.channel.gather_objects((mine, since_s > self._stall_limit_s))
        active = [rank for rank, presence in enumerate(presences) if presence is Presence.ACTIVE]
        wishes = {rank: told[rank][0] for rank in active}
        common = [n for n in wishes[active[0]] if all(n in wish for wish in wishes.values())]
        if common:
            self._looking_since = 0.0
            self._perform_one(common[0], wishes, presences)
            return True
        if any(gave_up for _, gave_up in told):
            firsts = (f"rank {r} for {next(iter(w), 'nothing')}" for r, w in wishes.items())
            self._fail(f"the ranks waited for different requests: {', '.join(firsts)}")
            return False
        self._looking_since = self._looking_since or time.monotonic()
        with self._changed:
            # The others' new requests show only in the next round, so this polls.
            self._changed.wait(min(max(since_s, MIN_POLL_S), MAX_POLL_S))
        return True

    def _perform_one(
        self, name: str, wishes: dict[int, dict[str, Any]], presences: list[Presence]
    ) -> None:
        wanted = next(iter(wishes.values()))[name]
        joined = [rank for rank in range(len(presences)) if rank not in wishes]
        problem = _find_problem({rank: wish[name] for rank, wish in wishes.items()}, joined)
        with self._changed:
            found = self._queue.get(name)
        if self.channel.rank in joined:
            if self._device is not None:
                # Otherwise this thread would use the first device.
                torch.cuda.set_device(self._device)
            found = _StandIn(*wanted) if not problem else None
        if found is not None and problem:
            self._drop(found)
            found.finish(error=HorovodInternalError(problem))
        elif found is not None:
            self._perform(found)

    def _perform(self, handle: Handle) -> None:
        # It stays queued meanwhile, so that ``_fail`` finds it if another rank ends.
        result = handle.perform(self.channel)
        self._drop(handle)
        handle.finish(result)

    def _drop(self, handle: Handle) -> None:
        with self._changed:
            self._queue.pop(handle.name, None)

    def _note_joins(self, presences: list[Presence]) -> None:
        for rank, (before, now) in enumerate(zip(self._seen, presences, strict=True)):
            if now is Presence.JOINED and before is not now:
                self._last_joined = rank
        self._seen = presences

    def _end_join(self) -> None:
        with self._changed:
            joining, self._joining = self._joining, None
            self._presence = Presence.ACTIVE
            self._seen = [Presence.ACTIVE] * self.channel.size
        if joining is not None:
            joining.finish(self._last_joined)

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._error = HorovodInternalError(reason)
            pending = [*self._queue.values(), *([self._joining] if self._joining else [])]
            self._queue.clear()
        for handle in pending:
            handle.finish(error=HorovodInternalError(f"{handle.name}: {reason}"))


class _StandIn(Handle):
    """What a rank that has joined contributes: zeros, or no rows."""

    def __init__(self, name: str, request: Collective, shapes: Sequence[Any]) -> None:
        super().__init__(name, request, [])
        free = (0,) if request.kind in ROWS_MAY_DIFFER else ()
        self.tensors = [
            torch.zeros((*free, *shape), dtype=dtype, device=device)
            for shape, dtype, device in shapes
        ]
        self._began = _record(self.tensors)


def _fingerprint(signature: tuple[Any, ...]) -> int:
    digest = hashlib.blake2b(repr(signature).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _find_problem(signatures: dict[int, tuple[Any, ...]], joined: list[int]) -> str:
    """Why the ranks cannot perform this request together; empty if they can."""
    first, wanted = next(iter(signatures.items()))
    name, request, _ = wanted
    for rank, signature in signatures.items():
        if signature != wanted:
            return (
                f"Mismatched requests for {name}: rank {first} asks for {describe(wanted)}, "
                f"rank {rank} for {describe(signature)}"
            )
    can_stand_in = request.kind in ("allgather", "barrier") or (
        request.kind in ("allreduce", "reducescatter")
        and request.op in (ReduceOp.SUM, ReduceOp.AVERAGE)
    )
    can_stand_in |= request.kind == "broadcast" and request.root not in joined
    if joined and not can_stand_in:
        return f"{name}: {describe(wanted)} is not possible after rank {joined[0]} has joined"
    return ""


def describe(signature: tuple[Any, ...]) -> str:
    """A request in words, for people."""
    _, request, shapes = signature
    first = "[rows, " if request.kind in ROWS_MAY_DIFFER else "["
    tensors = ", ".join(
        f"{str(dtype).removeprefix('torch.')}{first}{', '.join(map(str, shape))}] on {device}"
        for shape, dtype, device in shapes
    )
    return (
        f"{request.kind} ({request.op.name.lower()}, root {request.root}) of {tensors or 'nothing'}"
    )
