"""What a target itself tells of a run: for a report of a run whose own folder is elsewhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.runs.folder import RunFolder, write_atomically

STORY_FILE = "story.json"
"""In a borrowed folder: what the target told."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """One thing that happened; ``at`` is seconds since the epoch.

    ``place`` is a node's index and incarnation; None for the job as a whole.
    """

    at: float
    place: tuple[int, int] | None
    text: str


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One incarnation of a node, as a report has it; ``reason`` None where it left no word."""

    node_index: int
    incarnation: int
    attempts: int = 0
    reason: str | None = None
    exit_code: int | None = None
    detail: str = ""
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, int]:
        return self.node_index, self.incarnation


@dataclass(frozen=True, kw_only=True)
class Story:
    """``said`` oldest first, and the ``nodes`` that the target knows; both may be empty."""

    said: tuple[Said, ...] = ()
    nodes: tuple[NodeReport, ...] = ()

    @classmethod
    def from_jsonable(cls, data: Mapping[str, Any]) -> Story:
        """Raises ``KeyError`` or ``TypeError`` for anything else."""
        said = ({**one, "place": tuple(one["place"] or ()) or None} for one in data["said"])
        return cls(
            said=tuple(Said(**one) for one in said),
            nodes=tuple(NodeReport(**one) for one in data["nodes"]),
        )


def write_story(run: RunFolder, story: Story) -> None:
    """Raises ``OSError``."""
    write_atomically(run.path / STORY_FILE, json.dumps(asdict(story)))


def read_story(run: RunFolder) -> Story:
    """Empty where the target was not asked."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Story.from_jsonable(json.loads((run.path / STORY_FILE).read_text()))
    return Story()
