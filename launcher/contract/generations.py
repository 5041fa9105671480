"""Generations: a number for each membership, taken by an atomic create on shared storage.

A checkpoint carries the generation of the group that made it, and resume follows only the newest,
so a node that was frozen or cut off can never win. The training reads the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from launcher.contract.records import read_object

FOLDER = "generations"
"""Below the checkpoint folder; files are called ``<8 digits>.json``, and ``.finished`` as well for
a group that has trained to the end."""
FINISHED = ".finished"


@dataclass(frozen=True, kw_only=True)
class TakenGeneration:
    """A generation that a coordinator has taken. ``origin`` is the coordinator's id, ``run_id`` its
    run; both are empty if not known."""

    number: int
    origin: str
    run_id: str


class Fence:
    """The generations of one checkpoint folder."""

    def __init__(self, checkpoint_dir: Path, run_id: str) -> None:
        self._folder = checkpoint_dir / FOLDER
        self._run_id = run_id

    def take_next(self, origin: str) -> int:
        """Takes the next number; raises ``OSError`` when the folder cannot be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            number = self._newest_number() + 1
            try:
                handle = os.open(self._path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                continue
            with os.fdopen(handle, "w") as file:
                json.dump({"run_id": self._run_id, "origin": origin}, file)
                file.flush()
                os.fsync(file.fileno())
            # So that the name survives a crash. Some file systems refuse to sync a folder.
            handle = os.open(self._folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                os.fsync(handle)
            os.close(handle)
            return number

    def finish(self, number: int) -> None:
        """The group of this generation has trained to the end. Raises ``OSError``."""
        self._path(number).with_suffix(FINISHED).touch()

    def is_finished(self, since: int) -> bool:
        """Whether a group of this run, of this generation or a later one, trained to the end."""
        done = (int(path.stem) for path in self._folder.glob(f"*{FINISHED}"))
        return any(
            read_object(self._path(number)).get("run_id") == self._run_id
            for number in done
            if number >= since
        )

    def newest(self) -> TakenGeneration | None:
        """The last generation taken, None if there is none. Its origin and run are empty while the
        file is being written. Raises ``OSError``."""
        number = self._newest_number()
        if number == 0:
            return None
        record = read_object(self._path(number))
        origin, run_id = str(record.get("origin", "")), str(record.get("run_id", ""))
        return TakenGeneration(number=number, origin=origin, run_id=run_id)

    def _newest_number(self) -> int:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return 0
        stems = (name.removesuffix(".json") for name in names)
        return max((int(stem) for stem in stems if stem.isdigit()), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.json"
