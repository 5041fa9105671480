"""The manifest of a checkpoint, which names every file with its size and checksum.

Standard library only, so that tools can read it where torch is not installed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from fabric_train.errors import InputError

FORMAT = 2
"""Increased when an older program could misread what a newer one writes."""
MANIFEST_FILE = "manifest.json"
MOST_TOLD = 5
"""How many differences between two trainings are told, of those of all tensors."""


class DamagedError(Exception):
    """A checkpoint whose bytes are not those that were committed."""


class FileEntry(TypedDict):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The description of a checkpoint, in JSON values.

    ``files``: by name, all but the manifest. ``tensors``: name -> unsharded shape. ``trainer``:
    the state that is not a tensor, as the training gave it. ``config``: what a training that
    resumes must have in common. ``score``: lower is better. ``world_size`` and ``versions`` are the
    writers'; a reader's may differ.
    """

    step: int
    generation: int
    attempt: int
    world_size: int
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, list[int]] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    score: float | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry["bytes"] for entry in self.files.values())


def render_manifest(manifest: CheckpointManifest) -> bytes:
    """The file's content, with ``config_sha256`` to compare trainings by."""
    content = {
        "format": FORMAT,
        **asdict(manifest),
        "config_sha256": hashlib.sha256(
            json.dumps(manifest.config, sort_keys=True, default=str).encode()
        ).hexdigest(),
    }
    return json.dumps(content, indent=1, default=str).encode() + b"\n"


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint, without a look at its files.

    Raises DamagedError if it is missing or malformed, OSError if the storage fails, and
    InputError for another format: skipping such a checkpoint would silently repeat its training.
    """
    try:
        content = json.loads((folder / MANIFEST_FILE).read_bytes())
        found_format = content.pop("format")
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST_FILE} cannot be read") from error
    if found_format != FORMAT:
        raise InputError(
            f"checkpoint {folder} has format {found_format}, this program reads {FORMAT}",
            "resume with the program that wrote it, or choose another --checkpoint_dir",
        )
    try:
        content.pop("config_sha256")
        return CheckpointManifest(**content)
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{MANIFEST_FILE} lacks keys") from error


def describe_files(folder: Path, names: list[str]) -> dict[str, FileEntry]:
    """Size and SHA-256 of complete files."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)}
        for name in names
    }


def check_files(folder: Path, manifest: CheckpointManifest) -> None:
    """Compares every byte with the manifest; raises DamagedError that names the first bad file.

    The digest finds flipped bits, which torch would load without an error. Raises OSError if the
    storage fails, because the bytes may be good then.
    """
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedError(f"{name} has {size} bytes, not {entry['bytes']}")
            if digest(path) != entry["sha256"]:
                raise DamagedError(f"{name} does not match {MANIFEST_FILE}")
        except FileNotFoundError as error:
            raise DamagedError(f"{name}: {error.strerror}") from error


def find_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """One line for each key whose values are not equal, sorted by key; compared as JSON."""
    current = json.loads(json.dumps(current, default=str))
    return [
        f"{key} is {current.get(key, 'absent')}, but {saved.get(key, 'absent')} in the checkpoint"
        for key in sorted(saved.keys() | current.keys())
        if saved.get(key, "absent") != current.get(key, "absent")
    ]


def refuse_another(checkpoint: Path, differences: Sequence[str], option: str) -> InputError:
    """The refusal of a checkpoint of another training, with the first of the ``differences``.

    ``option`` is how this training spells that of the folder for its checkpoints.
    """
    told = "; ".join(differences[:MOST_TOLD])
    more = len(differences) - MOST_TOLD
    return InputError(
        f"this training differs from the one that wrote the checkpoint {checkpoint}: {told}"
        + (f"; and in {more} more" if more > 0 else ""),
        f"give the earlier values, or start anew with another {option}",
    )


def digest(path: Path) -> str:
    """The file's SHA-256, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
