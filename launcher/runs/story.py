"""What a target knows of a run by itself, for a report without the run's own folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from launcher.plan.records import parse_record
from launcher.runs.folder import RunFolder, write_atomically

STORY_FILE = "story.json"
"""In a borrowed folder: what the target knows."""


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
    """One incarnation of a node in a report; ``reason`` is None if it left no outcome."""

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
    """What happened, oldest first, and the nodes that the target knows; both may be empty."""

    said: tuple[Said, ...] = ()
    nodes: tuple[NodeReport, ...] = ()


def write_story(run: RunFolder, story: Story) -> None:
    """Raises ``OSError``."""
    write_atomically(run.path / STORY_FILE, json.dumps(asdict(story)))


def read_story(run: RunFolder) -> Story:
    """Empty if the target was not asked."""
    with contextlib.suppress(OSError, ValueError):
        return parse_record(Story, json.loads((run.path / STORY_FILE).read_text()))
    return Story()
