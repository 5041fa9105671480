"""Storage that a cluster's job names: claims, folders in them, and where pods see them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.job.values import RefusedError, parse_mount_target

EPHEMERAL = "ephemeral"

NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
CLAIM = rf"pvc/{NAME}(/[A-Za-z0-9][A-Za-z0-9._/-]*)?"
CLAIM_WORDS = "pvc/CLAIM or pvc/CLAIM/FOLDER"
VOLUME_WORDS = "pvc/CLAIM[/FOLDER]:TARGET, with :ro at the end where it is only read"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim, and a folder in it; empty for its root."""

    name: str
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A claim's folder as the pods see it."""

    claim: Claim
    target: str
    read_only: bool


def parse_claim(value: str) -> Claim:
    """``pvc/CLAIM[/FOLDER]``. Raises ``RefusedError``."""
    if not re.fullmatch(CLAIM, value) or ".." in value.split("/"):
        raise RefusedError(CLAIM_WORDS)
    _, name, *folders = value.split("/")
    return Claim(name=name, folder="/".join(part for part in folders if part))


def parse_volume(value: str) -> Volume:
    """``pvc/CLAIM[/FOLDER]:TARGET[:ro]``. Raises ``RefusedError``."""
    claim, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if not re.fullmatch(CLAIM, claim) or not target or mode not in ("", "ro", "rw"):
        raise RefusedError(VOLUME_WORDS)
    return Volume(
        claim=parse_claim(claim), target=parse_mount_target(target), read_only=mode == "ro"
    )
