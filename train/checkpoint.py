"""Checkpoints on the disk: each a folder that is committed as a whole and proves its own bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train.durable import (
    remove_folder,
    remove_staging,
    staging_path,
    write_folder,
    write_synced,
)
from train.errors import InputError

FORMAT = 1
"""Raised when an older program could misread what a newer one wrote."""
STATE_FILE = "state.pt"
MANIFEST_FILE = "manifest.json"
NAME = re.compile(r"step-(\d{10})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete training state as it was read; ``payload`` lies in CPU memory."""

    path: Path
    payload: dict[str, Any]


class DamagedError(Exception):
    """A checkpoint whose bytes are not those that were committed."""


class CheckpointStore:
    """The checkpoints of one training, in one folder with one writer.

    Only rank 0 may use it. Committed are ``step-<step>`` folders with ``state.pt`` and
    ``manifest.json``; all else is left over from a killed writer and never read.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def open(self) -> None:
        """Makes the folder and clears what killed writers left; raises InputError if it cannot."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = staging_path(self.folder / "probe")
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise InputError(
                f"checkpoints cannot be written to {self.folder}: {error.strerror}",
                "choose another folder with --checkpoint_dir or CHECKPOINT_DIR",
            ) from error
        remove_staging(self.folder)

    def write(self, payload: dict[str, Any]) -> Path:
        """Commits a state that holds its ``step``, deletes those beyond ``keep``, blocks.

        The newest one stays readable at every instant, also through a power cut.
        """
        step = payload["step"]
        path = self.folder / f"step-{step:010d}"
        with write_folder(path) as staging:
            write_synced(staging / STATE_FILE, lambda file: torch.save(payload, file))
            manifest = describe(staging / STATE_FILE, step)
            write_synced(staging / MANIFEST_FILE, lambda file: file.write(manifest))
        self._remove_old(step)
        return path

    def read_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest undamaged checkpoint, and a note on each newer one that was skipped.

        Raises InputError for one that only a newer program can read: skipping it would train
        again, without a word, what had been trained.
        """
        skipped: list[str] = []
        for _, path in sorted(self._committed(), reverse=True):
            try:
                return read(path), skipped
            except DamagedError as error:
                skipped.append(f"skips the damaged checkpoint {path}: {error}")
        return None, skipped

    def _committed(self) -> Iterator[tuple[int, Path]]:
        for path in self.folder.iterdir():
            name = NAME.fullmatch(path.name)
            if name and path.is_dir():
                yield int(name[1]), path

    def _remove_old(self, newest_step: int) -> None:
        # Later steps are damaged ones that were skipped: counting them would delete good ones.
        steps = sorted(entry for entry in self._committed() if entry[0] <= newest_step)
        for _, path in steps[: -self._keep]:
            remove_folder(path)


def describe(state_file: Path, step: int) -> bytes:
    """The manifest: torch reads a file with flipped bits without complaint, a digest does not."""
    manifest = {
        "format": FORMAT,
        "step": step,
        "bytes": state_file.stat().st_size,
        "sha256": digest(state_file),
    }
    return json.dumps(manifest, indent=2).encode() + b"\n"


def read(path: Path) -> Checkpoint:
    """One checkpoint, compared with its manifest; raises DamagedError where they differ."""
    manifest = read_manifest(path / MANIFEST_FILE)
    if manifest["format"] != FORMAT:
        raise InputError(
            f"checkpoint {path} has format {manifest['format']}, this program reads {FORMAT}",
            "resume with the program that wrote it, or choose another --checkpoint_dir",
        )
    try:
        if digest(path / STATE_FILE) != manifest["sha256"]:
            raise DamagedError(f"{STATE_FILE} is not what {MANIFEST_FILE} says")
        # weights_only: a checkpoint from elsewhere must not be able to run code.
        payload = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DamagedError(f"{STATE_FILE}: {error.strerror}") from error
    return Checkpoint(path=path, payload=payload)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest's fields; raises DamagedError where they cannot be read."""
    try:
        manifest = json.loads(path.read_bytes())
        return {key: manifest[key] for key in ("format", "step", "bytes", "sha256")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{MANIFEST_FILE} cannot be read") from error


def digest(path: Path) -> str:
    """The file's SHA-256, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
