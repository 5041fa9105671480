"""A rule: which line means which cause, and how much it weighs."""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

from launcher.verdict.cause import Cause
from launcher.verdict.scan import Line


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
class Rule:
    """``pattern`` is searched in a line; ``fix`` stands for the cause's own where it knows more.

    Its ``{names}`` are groups of the pattern, and so are ``node`` and ``rank``, if it has them.
    """

    cause: Cause
    weight: Weight
    pattern: str
    fix: str = ""

    @functools.cached_property
    def search(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line, what it means and how much it weighs."""

    cause: Cause
    weight: Weight
    line: Line
    fix: str = ""


def rows(cause: Cause, weight: Weight, *patterns: str, fix: str = "") -> tuple[Rule, ...]:
    """Several patterns that mean the same."""
    return tuple(Rule(cause=cause, weight=weight, pattern=one, fix=fix) for one in patterns)
