"""A look at the workers of one node: stacks and collectives, and where both lie in its folder.

Whoever asks writes LOOK_REQUEST; the agent leaves ``looks/<id>/`` and writes LOOK_FILE last. It
looks unasked too, before it ends workers that hang. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from launcher.contract.protocol import LOOK_FILE as LOOK_FILE
from launcher.contract.protocol import LOOK_REQUEST as LOOK_REQUEST
from launcher.contract.protocol import LOOKS_DIR
from launcher.contract.protocol import TRACE as TRACE
from launcher.contract.records import dump_record, parse_record, read_object

STACKS = "rank-{rank}.stacks.json"
"""The fields of ``RankStacks``."""
COLLECTIVES = "rank-{rank}.collectives.json"
"""What torch's flight recorder wrote, as torch writes it."""
FAILED_COLLECTIVES = "collectives.json"
"""The same, in the folder of a worker that ended by an exception, such as a timeout of torch's."""
CRASHED_STACKS = "crash.txt"
"""In the folder of a worker that crashed: what its faulthandler wrote after ``CRASH``."""
CRASH = "Fatal Python error: "

SPEEDSCOPE = "rank-{rank}.speedscope.json"
"""What py-spy recorded of a script that does not answer PROFILE_REQUEST."""

Why = Literal["asked", "hang", "loss", "profile", "stop"]
TakenBy = Literal["py-spy", "worker", "faulthandler", ""]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_FRAMES = 200
"""The most frames of a thread that are kept."""
MOST_THREADS = 500
"""The most threads of a worker that are kept."""


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """``id`` names the look's folder; with ``native``, stacks have the frames of C too.

    ``why`` is "stop" if the workers are about to be ended, and else "asked". With ``steps`` it asks
    for a profile of so many steps, or of ``seconds`` if no training answers.
    """

    id: str
    native: bool = False
    steps: int = 0
    seconds: float = 0.0
    why: Why = "asked"

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id[:100]!r} is no name of a folder")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call; ``line`` is 0 where it is not known, as in C."""

    function: str
    file: str
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """``frames`` begin with the newest call; ``name`` is empty if it is unknown."""

    name: str = ""
    is_main: bool = False
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankStacks:
    """The stacks of one worker, its main thread first.

    ``taken_by`` is empty if there are none; ``missing`` then says why. If py-spy did not take them,
    ``missing`` says why.
    """

    rank: int
    pid: int
    taken_by: TakenBy = ""
    missing: str = ""
    threads: tuple[ThreadStack, ...] = ()

    @property
    def main_frames(self) -> tuple[Frame, ...]:
        """The main thread's, its newest call first."""
        return self.threads[0].frames if self.threads else ()


@dataclass(frozen=True, kw_only=True)
class RankLook:
    """What one look found about one worker.

    ``state`` is of its main thread, as ``/proc`` has it: R runs, S sleeps, D waits in the kernel
    for a disk or a driver, T was stopped by a signal, Z has ended; empty where it is gone.
    ``waits_in`` is where in the kernel it waits, as far as the kernel tells it.
    ``silent_s`` are the seconds since its last beat, at its start and after each optimizer step.
    ``cpu_share`` of a core is what its processes used before they were to be ended; else 0.
    ``wrote_s`` are the seconds since its last output; -1 if it has written nothing.
    ``no_stacks`` and ``no_collectives`` say why there are none; empty where the file is there.
    """

    rank: int
    pid: int
    state: str = ""
    waits_in: str = ""
    steps: int = 0
    silent_s: float = 0.0
    cpu_share: float = 0.0
    wrote_s: float = -1.0
    no_stacks: str = ""
    no_collectives: str = ""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the workers of one node; ``at`` is in seconds since the epoch.

    ``why``: somebody asked for a look or for a profile, the watchdog found a hang, another node was
    lost, or the workers were silent when they were to be ended. A profile has no stacks; its ranks'
    ``no_stacks`` says why there is no profile.
    ``attempt`` is the workers' attempt, -1 before the first.
    """

    id: str
    at: float
    why: Why
    attempt: int
    native: bool = False
    ranks: tuple[RankLook, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PrintedLook:
    """A worker's look as the agent prints it before a stop: nobody fetches a pod's files then."""

    look: RankLook
    stacks: RankStacks


STANDS = "stands: "
"""Stands before a ``PrintedLook`` in the node's console."""
MOST_PRINTED_THREADS, MOST_PRINTED_FRAMES = 2, 15


def render_printed_look(worker: RankLook, stacks: RankStacks) -> str:
    """A line with a ``PrintedLook``, which has the newest calls of the first threads. Pure."""
    threads = (
        replace(thread, frames=thread.frames[:MOST_PRINTED_FRAMES])
        for thread in stacks.threads[:MOST_PRINTED_THREADS]
    )
    return STANDS + dump_record(
        PrintedLook(look=worker, stacks=replace(stacks, threads=tuple(threads)))
    )


def parse_printed_looks(console: str) -> tuple[PrintedLook, ...]:
    """The looks in a node's console; empty if one of them cannot be read. Pure."""
    texts = re.findall(rf"\] {STANDS}(\{{.*\}})$", console, re.MULTILINE)
    with contextlib.suppress(ValueError):
        return tuple(parse_record(PrintedLook, json.loads(text)) for text in texts)
    return ()


def look_dir(node_dir: Path, id: str) -> Path:
    """The folder of one look, below that of the node's incarnation."""
    return node_dir / LOOKS_DIR / id


def read_look(folder: Path) -> Look | None:
    """The look in a folder; None where it is not finished, or cannot be read."""
    with contextlib.suppress(ValueError):
        return parse_record(Look, read_object(folder / LOOK_FILE))
    return None


def read_looks(node_dir: Path) -> tuple[Look, ...]:
    """All finished looks at one incarnation of a node, oldest first, without profiles."""
    all_looks = [read_look(path) for path in (node_dir / LOOKS_DIR).glob("*/")]
    looks = (look for look in all_looks if look is not None and look.why != "profile")
    return tuple(sorted(looks, key=lambda look: look.at))


def read_stacks(folder: Path, rank: int) -> RankStacks | None:
    """The stacks of one worker from a look's folder; None where there are none to be read."""
    with contextlib.suppress(ValueError):
        return parse_record(RankStacks, read_object(folder / STACKS.format(rank=rank)))
    return None


def read_collectives(folder: Path, rank: int) -> dict[str, Any]:
    """What torch's recorder of one worker wrote; empty where there is nothing to be read."""
    return read_object(folder / COLLECTIVES.format(rank=rank))


def has_open_collective(recorded: Mapping[str, Any]) -> bool:
    """Whether torch's recorder has a collective that the worker has not completed. Pure."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        # Not from pg_status, where gloo's last collective may never count as completed.
        return any(
            not entry.get("retired") and entry.get("state") != "completed"
            for entry in recorded["entries"]
        )
    return False


def last_collective_at(recorded: Mapping[str, Any]) -> float:
    """When the worker entered its newest collective, in epoch seconds; 0 if never. Pure."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        return max(int(entry["time_created_ns"]) / 1e9 for entry in recorded["entries"])
    return 0.0


_STATES = {
    "T": "stopped by a signal; kill -CONT continues it",
    "D": "waits in the kernel, for a disk or a driver",
    "Z": "has ended",
    "": "has ended",
}


def describe_state(worker: RankLook) -> str:
    """Why a worker makes no progress, if its process state alone says so; else empty. Pure."""
    words = _STATES.get(worker.state, "")
    return f"{words}: {worker.waits_in}" if worker.state == "D" and worker.waits_in else words


def render_thread(thread: ThreadStack) -> tuple[str, ...]:
    """The calls as Python's faulthandler writes them, newest first. Pure."""
    return tuple(f'  File "{f.file}", line {f.line} in {f.function}' for f in thread.frames)


def cut_threads(threads: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """The main thread first, and no more than MOST_THREADS and MOST_FRAMES. Pure."""
    kept = sorted(threads, key=lambda thread: not thread.is_main)[:MOST_THREADS]
    return tuple(
        ThreadStack(name=t.name, is_main=t.is_main, frames=t.frames[:MOST_FRAMES]) for t in kept
    )
