"""Which checkpoints belong to one history, however many groups wrote into the folder; fences off
groups that were replaced.

A *generation* is one membership of nodes, a number that only one group can take. An *attempt*
counts that generation's starts of the training. Each start writes one note of the checkpoint that
it continued from, in a file that can be made only once. So the newest note decides what the history
is, and what an older group commits afterwards (a node that was frozen and woke) is in no history.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabric_train.checkpointing.durable import reading, sync_folder

GENERATIONS_DIR = "generations"
"""Below the checkpoint folder; ``<8 digits>.json``, made by the node agent or the training."""
LINEAGE_DIR = "lineage"
"""Below the checkpoint folder; ``<8 digits>-<4 digits>.json``, a note for each start."""


class FencedError(RuntimeError):
    """A later group has taken over, so this one may not commit any more."""


@dataclass(frozen=True, order=True)
class Writer:
    """Who commits: the group of a generation, in its ``attempt``-th start (0-based)."""

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"generation {self.generation}, attempt {self.attempt}"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A checkpoint's name in the history."""

    step: int
    writer: Writer


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start's note: what it continued from (None: nothing), and when (epoch seconds)."""

    writer: Writer
    base: Commit | None
    at: float


class Lineage:
    """The notes and generations of one checkpoint folder; for rank 0 only."""

    def __init__(self, folder: Path) -> None:
        self._generations = folder / GENERATIONS_DIR
        self._notes = folder / LINEAGE_DIR

    def read_starts(self) -> tuple[Start, ...]:
        """All notes, oldest writer first; skips damaged ones, whose writers committed nothing.

        Raises OSError if the storage fails: a missing note would change the history.
        """
        starts = []
        for stem in _list(self._notes):
            path = self._notes / f"{stem}.json"
            with (
                contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError),
                reading(path, "start again when the storage answers"),
            ):
                starts.append(_parse_start(json.loads(path.read_bytes())))
        return tuple(sorted(starts, key=lambda start: start.writer))

    def begin(self, generation: int | None, base: Commit | None) -> Writer:
        """Notes that a start continues from ``base``; without a generation it takes the next.

        Raises FencedError if a later generation exists, OSError if the folder cannot be written.
        """
        if generation is None or not self._generation_path(generation).exists():
            generation = self._take_generation()
        self._notes.mkdir(exist_ok=True)
        while True:
            writer = Writer(generation, self._newest_attempt(generation) + 1)
            self.check(writer)
            start = Start(writer=writer, base=base, at=time.time())
            if _create(self.note_of(writer), _render_start(start)):
                return writer

    def note_of(self, writer: Writer) -> Path:
        """The file of the note that ``begin`` made for this writer."""
        return self._notes / f"{writer.generation:08d}-{writer.attempt:04d}.json"

    def check(self, writer: Writer) -> None:
        """Raises FencedError unless ``writer`` is the newest there is."""
        newest = self._newest_generation()
        if newest > writer.generation:
            raise FencedError(
                f"generation {newest} has taken over: generation {writer.generation} commits "
                "no more checkpoints and has to end; after a heal, call saver.take_over() first"
            )
        if self._newest_attempt(writer.generation) > writer.attempt:
            raise FencedError(f"a later start than {writer} has taken over: this one has to end")

    def _take_generation(self) -> int:
        self._generations.mkdir(parents=True, exist_ok=True)
        while True:
            number = self._newest_generation() + 1
            if _create(self._generation_path(number), {"run_id": "", "origin": "training"}):
                return number

    def _newest_generation(self) -> int:
        return max((int(stem) for stem in _list(self._generations) if stem.isdigit()), default=0)

    def _newest_attempt(self, generation: int) -> int:
        notes = (stem.partition("-") for stem in _list(self._notes))
        wanted = f"{generation:08d}"
        return max((int(attempt) for number, _, attempt in notes if number == wanted), default=-1)

    def _generation_path(self, number: int) -> Path:
        return self._generations / f"{number:08d}.json"


def _list(folder: Path) -> list[str]:
    """The names of the JSON files, without their ending; ``Path.glob`` would hide an OSError."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def find_stranger(commit: Commit, starts: tuple[Start, ...]) -> str | None:
    """Why a commit does not belong to the newest start's history; None if it does.

    In a folder without notes, such as a copy of one checkpoint, all commits belong to it. Pure.
    """
    if not starts:
        return None
    bases = {start.writer: start.base for start in starts}
    writer, last_step = starts[-1].writer, math.inf
    # A writer's note may be gone; its commits up to the base still belong to the history.
    while writer > commit.writer and (base := bases.get(writer)):
        writer, last_step = base.writer, base.step
    if writer != commit.writer:
        return f"no later group continued from {commit.writer}"
    if commit.step > last_step:
        return f"the group that followed {commit.writer} continued from step {last_step}"
    return None


def _create(path: Path, content: Mapping[str, Any]) -> bool:
    """Makes a new file; False if it exists already."""
    try:
        with path.open("x") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    sync_folder(path.parent)
    return True


def _render_start(start: Start) -> dict[str, Any]:
    base = start.base
    return {
        "generation": start.writer.generation,
        "attempt": start.writer.attempt,
        "at": start.at,
        "base": base
        and {
            "step": base.step,
            "generation": base.writer.generation,
            "attempt": base.writer.attempt,
        },
    }


def _parse_start(content: Mapping[str, Any]) -> Start:
    base = content["base"]
    return Start(
        writer=Writer(content["generation"], content["attempt"]),
        base=Commit(step=base["step"], writer=Writer(base["generation"], base["attempt"]))
        if base
        else None,
        at=content["at"],
    )
