"""A rule: which line means which cause, and how much it weighs."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.verdict.cause import FailureCause
from launcher.verdict.scan import LogLine


class Weight(enum.IntEnum):
    """What a line is worth beside others; the heaviest decides, among equals the first."""

    HINT = 0
    """It may be so, and often is not the cause: a warning."""
    SIGN = 1
    """What is also said where something else is the cause."""
    LIKELY = 2
    """A failure of its own that may have more than one cause."""
    SURE = 3
    """A failure of its own that cannot mean anything else."""
    ROOT = 4
    """A fact of the machine or the cluster that explains what workers say."""


@dataclass(frozen=True, kw_only=True)
class LineRule:
    """``pattern`` is searched in a line.

    Its groups may be ``package``, which the fix names, and ``rank`` and ``node``, those at fault.
    """

    cause: FailureCause
    weight: Weight
    pattern: str

    @functools.cached_property
    def search(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """A line, what it means and how much it weighs."""

    cause: FailureCause
    weight: Weight
    line: LogLine
    package: str = ""
    rank: int | None = None
    """The rank at fault, where another one tells of it."""


HINT, SIGN, LIKELY, SURE, ROOT = Weight


Meanings = Mapping[tuple[FailureCause, Weight], tuple[str, ...]]
"""Of a family: the patterns of lines that mean a cause, and what they weigh."""


def table(meanings: Meanings) -> tuple[LineRule, ...]:
    """A rule for each pattern."""
    return tuple(
        LineRule(cause=cause, weight=weight, pattern=pattern)
        for (cause, weight), patterns in meanings.items()
        for pattern in patterns
    )
