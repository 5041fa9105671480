"""A worker's heartbeat: a small mapped file that the worker writes and the agent reads.

The worker entry beats once at its start and after every optimizer step, of any script. Layout:
``contract.HEARTBEAT_FORMAT``.

A beat counts only with its checksum, because a reader may look at any time. The writer fills two
slots in turn, so that one is whole even if the writer dies while it writes the other.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from launcher.agent.worker.after_import import after_import
from launcher.contract import protocol

_LAYOUT = struct.Struct(protocol.HEARTBEAT_FORMAT)
_CHECKSUM = struct.Struct(protocol.HEARTBEAT_CHECKSUM_FORMAT)
_SLOT_BYTES = _LAYOUT.size + _CHECKSUM.size
_FILE_BYTES = _SLOT_BYTES * protocol.HEARTBEAT_SLOTS
_MAGIC = protocol.HEARTBEAT_MAGIC


@dataclass(frozen=True, kw_only=True)
class WorkerBeat:
    """What a worker last said; ``at`` is in seconds of the machine's monotonic clock.

    ``number`` counts the worker's beats: two reads of one number are reads of one beat.
    """

    pid: int
    number: int
    steps: int
    at: float


class HeartbeatWriter:
    """The worker's side. Beating costs about a microsecond and never blocks."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FILE_BYTES)
        self._steps = 0
        self._numbers = itertools.count(1)
        self._write()

    def step(self) -> None:
        self._steps += 1
        self._write()

    def _write(self) -> None:
        number = next(self._numbers)
        beat = _LAYOUT.pack(_MAGIC, os.getpid(), number, self._steps, time.monotonic())
        start = number % protocol.HEARTBEAT_SLOTS * _SLOT_BYTES
        # In one copy: pack_into would clear the slot first, and a reader could see that.
        self._map[start : start + _SLOT_BYTES] = beat + _CHECKSUM.pack(zlib.crc32(beat))


def create_heartbeat(path: Path) -> None:
    """Makes an empty heartbeat file for a worker that is about to start."""
    path.write_bytes(bytes(_FILE_BYTES))


def hung_mark(heartbeat: Path) -> Path:
    """The file, beside its heartbeat, that says that a worker is killed because it hangs."""
    return heartbeat.with_name(f"hung-{heartbeat.name}")


def read_heartbeat(path: Path) -> WorkerBeat | None:
    """The latest beat that was written whole; None before the first, or where the file is gone."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    slots = [data[at : at + _SLOT_BYTES] for at in range(0, _FILE_BYTES, _SLOT_BYTES)]
    beats = [beat for slot in slots if (beat := _parse_slot(slot))]
    # By time: a process that the script has forked has its own count of beats.
    return max(beats, key=lambda beat: (beat.at, beat.number), default=None)


def _parse_slot(slot: bytes) -> WorkerBeat | None:
    """None where the slot is empty or half written."""
    if len(slot) != _SLOT_BYTES:
        return None
    packed = slot[: _LAYOUT.size]
    if _CHECKSUM.unpack(slot[_LAYOUT.size :]) != (zlib.crc32(packed),):
        return None
    magic, pid, number, steps, at = _LAYOUT.unpack(packed)
    return WorkerBeat(pid=pid, number=number, steps=steps, at=at) if magic == _MAGIC else None


def beat_after_steps(writer: HeartbeatWriter) -> None:
    """Beats after every optimizer step, now or as soon as the script imports torch.

    Does not import torch: the script may set variables before it does so itself.
    """

    def register(module: ModuleType) -> None:
        hook: Callable[[Any], Any] | None = getattr(
            module, "register_optimizer_step_post_hook", None
        )
        if hook is not None:
            hook(lambda *_: writer.step())

    after_import("torch.optim.optimizer", register)
