"""Code that nodes fetch themselves, from a git repository."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from launcher.job.refused import NotAcceptedError
from launcher.job.storage import NAME
from launcher.job.values import parse_host_path

PATTERNS = {
    # No text that git takes for an option or a program to start, and no password.
    "git": r"(https?|git|file)://[^\s@]+|ssh://[^\s:]+(:\d+)?/\S+|[\w.]+@[\w.-]+:[^\s:]+",
    # A branch may have moved when a pod is replaced.
    "ref": r"[0-9a-f]{40}([0-9a-f]{24})?",
    "secret": NAME,
    "image": r"[^\s-]\S*",
}
CODE_WORDS = (
    "a folder, image, or {git: URL without a password, ref: COMMIT of 40 digits}, where secret: "
    "NAME and image: REF may follow"
)


@dataclass(frozen=True, kw_only=True)
class GitSource:
    """A commit of a repository; ``secret`` holds the key to it, ``image`` git to fetch it with."""

    git: str
    ref: str
    secret: str | None = None
    image: str | None = None


def parse_code(value: Any) -> str | GitSource:
    """The key ``code``. Raises ``NotAcceptedError``."""
    if isinstance(value, str):
        return parse_host_path(value)
    if not isinstance(value, dict) or not {"git", "ref"} <= value.keys() <= PATTERNS.keys():
        raise NotAcceptedError
    for key, given in value.items():
        if not re.fullmatch(PATTERNS[key], str(given)):
            # An address may hold a password.
            found = key if key == "git" else f"{key}: {given}"
            fix = f"git ls-remote {value['git']} lists them" if key == "ref" else ""
            raise NotAcceptedError(found=found, fix=fix)
    return GitSource(**{key: str(given) for key, given in value.items()})


def dump_code(code: str | GitSource) -> Any:
    """The value of the key ``code``, as ``parse_code`` reads it."""
    return code if isinstance(code, str) else {k: v for k, v in asdict(code).items() if v}
