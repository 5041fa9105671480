"""The thread that performs collectives, in one order on all ranks.

Horovod matches requests by name, whatever order each rank makes them in. So do we: before each
collective the ranks tell each other in a few bytes what is first in their queues. If that differs,
the lowest rank's comes first and the others look for the same name. A rank that has joined takes
part with zeros; one that leaves ends the engine on all ranks.
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

from fabric_train.horovod.collectives import PERFORM, Channel, ReduceOp, Request
from fabric_train.horovod.errors import HorovodInternalError

ROWS_MAY_DIFFER = ("allgather", "alltoall")


class Presence(enum.IntEnum):
    """What a rank takes part in."""

    ACTIVE = 0
    JOINED = 1
    LEAVING = 2


class Handle:
    """A request that was made; give it to ``synchronize`` or ``poll``."""

    def __init__(self, name: str, request: Request, tensors: Sequence[Tensor]) -> None:
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
        """Called by the engine, once."""
        self._result, self._error = result, error
        self._done.set()

    def perform(self, channel: Channel) -> None:
        """Takes part in the collective; on a GPU in a stream of its own."""
        act = PERFORM[self.request.kind]
        if self._began is None:
            self.finish(act(channel, self.tensors, self.request))
            return
        device = self.tensors[0].device
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            torch.cuda.current_stream().wait_event(self._began)
            result = act(channel, self.tensors, self.request)
            self._ended = torch.cuda.current_stream().record_event()
        self.finish(result)

    def is_done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._done.is_set()

    def wait(self) -> Any:
        """The result; raises what made it fail. Says on stderr what it waits for too long."""
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
            torch.cuda.current_stream(self.tensors[0].device).wait_event(self._ended)
        return self._result


def _record(tensors: Sequence[Tensor]) -> Any:
    on_gpu = bool(tensors) and tensors[0].is_cuda
    return torch.cuda.current_stream(tensors[0].device).record_event() if on_gpu else None


class Engine:
    """The queue of this rank's requests, and the thread that works on it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._queue: dict[str, Handle] = {}
        self._changed = threading.Condition()
        self._presence = Presence.ACTIVE
        self._seen = [Presence.ACTIVE] * channel.size
        self._joining: Handle | None = None
        self._last_joined = channel.rank
        self._error: HorovodInternalError | None = None
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
            handle.perform(self.channel)
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

    def join(self) -> int:
        """Takes part in the others' requests until all have joined; the last rank that did."""
        if self.channel.size == 1:
            return 0
        with self._changed:
            if self._error is not None:
                raise HorovodInternalError(str(self._error))
            self._joining = joining = Handle("join", Request(kind="barrier"), ())
            self._presence = Presence.JOINED
            self._changed.notify_all()
        return int(joining.wait())

    def leave(self, limit_s: float | None) -> bool:
        """Ends the engine on all ranks; False if it has not ended after ``limit_s``."""
        with self._changed:
            self._presence = Presence.LEAVING
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:
            self._fail(f"a collective failed, as another rank has ended or lost its way: {error}")

    def _round(self) -> bool:
        """Performs one request together with all ranks; False after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._presence)
            head = next(iter(self._queue.values()), None)
            # Requests that are queued come before a join, and not before an end.
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
            self._perform_leaders(presences, head if mine is Presence.ACTIVE else None)
        return True

    def _perform_leaders(self, presences: list[Presence], head: Handle | None) -> None:
        """Performs what the lowest active rank asks for."""
        asked = self.channel.gather_objects(head and head.signature)
        wanted = asked[presences.index(Presence.ACTIVE)]
        found = self._find(wanted)
        answers = self.channel.gather_objects(
            found and (found.signature, isinstance(found, _StandIn))
        )
        problem = _find_problem(wanted, answers)
        if found is None:
            return
        if problem:
            self._drop(found)
            found.finish(error=HorovodInternalError(problem))
        else:
            self._perform(found)

    def _find(self, wanted: tuple[Any, ...]) -> Handle | None:
        """This rank's request of the wanted name; waits for it. None if the rank leaves instead."""
        name, request, shapes = wanted
        with self._changed:
            self._changed.wait_for(lambda: name in self._queue or self._presence)
            if name in self._queue:
                return self._queue[name]
            if self._presence is Presence.LEAVING:
                return None
        return _StandIn(name, request, shapes)

    def _perform(self, handle: Handle) -> None:
        self._drop(handle)
        handle.perform(self.channel)

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

    def __init__(self, name: str, request: Request, shapes: Sequence[Any]) -> None:
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


def _find_problem(wanted: tuple[Any, ...], answers: list[Any]) -> str:
    """Why the ranks cannot perform this request together; empty if they can."""
    name, request, _ = wanted
    for rank, answer in enumerate(answers):
        if answer is None:
            return f"{name}: rank {rank} ends without having asked for it"
    described = [describe(signature) for signature, _ in answers]
    for rank, text in enumerate(described):
        if answers[rank][0] != wanted:
            return (
                f"Mismatched requests for {name}: one rank asks for {describe(wanted)}, "
                f"rank {rank} for {text}"
            )
    joined = [rank for rank, (_, stands_in) in enumerate(answers) if stands_in]
    can_stand_in = request.kind in ("allgather", "barrier") or (
        request.kind in ("allreduce", "reducescatter")
        and request.op in (ReduceOp.SUM, ReduceOp.AVERAGE)
    )
    if joined and not (
        can_stand_in or (request.kind == "broadcast" and request.root not in joined)
    ):
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
