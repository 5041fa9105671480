"""Folders that a job names: mounts of the host, claims of a cluster, and where they are seen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.contract import protocol
from launcher.job.values import NotAcceptedError

EPHEMERAL = "ephemeral"

NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
CLAIM = rf"pvc/{NAME}(/[A-Za-z0-9][A-Za-z0-9._/-]*)?"
MOUNT = r"[^:]+:[^:]+(:(ro|rw))?"
MOUNT_WORDS = "source:target, source:target:ro, or the keys source, target, read_only"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim, and a folder in it; empty for its root."""

    name: str
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A claim's folder, and where the pods see it."""

    claim: Claim
    target: str
    read_only: bool


def split_mount(value: object) -> object:
    """``source:target[:ro|rw]`` as the mapping of the long form; anything else as it is."""
    if not isinstance(value, str):
        return value
    source, target, mode = (*value.split(":"), "", "")[:3]
    if not re.fullmatch(MOUNT, value):
        raise NotAcceptedError(MOUNT_WORDS)
    return {"source": source, "target": target, "read_only": mode == "ro"}


def parse_mount_target(path: str) -> str:
    """Where a mount appears in the container: absolute, normal, and not in the launcher's place."""
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise NotAcceptedError("an absolute path in the container, without : and ..")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise NotAcceptedError("a path below /, which is the image's own")
    if parts[0] == protocol.CONTAINER_RUN_DIR.split("/")[1]:
        raise NotAcceptedError(f"a path outside /{parts[0]}, which belongs to the launcher")
    return "/" + "/".join(parts)


def parse_claim(value: str) -> Claim:
    """``pvc/CLAIM[/FOLDER]``. Raises ``NotAcceptedError``."""
    if not re.fullmatch(CLAIM, value) or ".." in value.split("/"):
        raise NotAcceptedError
    _, name, *folders = value.split("/")
    return Claim(name=name, folder="/".join(part for part in folders if part))


def parse_volume(value: str) -> Volume:
    """``pvc/CLAIM[/FOLDER]:TARGET[:ro]``. Raises ``NotAcceptedError``."""
    claim, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if not re.fullmatch(CLAIM, claim) or not target or mode not in ("", "ro", "rw"):
        raise NotAcceptedError
    return Volume(
        claim=parse_claim(claim), target=parse_mount_target(target), read_only=mode == "ro"
    )
