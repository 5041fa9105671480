"""A rule: which line means which cause, how much it weighs, and which causes only follow from
others.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

from launcher.contract.causes import Cause, parse_cause
from launcher.verdict.log_line import LogLine

_FOLLOWS = """
dns wrong-interface no-gpu gpu-busy cuda-assert bad-data data-loader-worker-died data-stall
crashed killed endless-loop deadlock straggler network-cut firewall exited-early
target-unreachable container-start time-limit nccl-error master-unreachable
script-error missing-collective stopped-by-user
"""
FOLLOWS = tuple(map(parse_cause, _FOLLOWS.split()))
"""Causes that another cause may have led to, the vaguest last. Text alone makes none certain."""
OWN_FIX = "FIX"
"""The fix of a rule whose lines name their own: they are about what was given, not about code."""
_UPPER = re.compile(r"\\.|\(\?P<\w+>|([A-Z])")
"""A capital letter of the text; escapes and group names match first, to stay as they are."""


class Weight(enum.IntEnum):
    """How much a line counts; the heaviest decides, among equals the first."""

    HINT = 0
    """A warning, which often is not the cause."""
    SIGN = 1
    """A line that is also written when something else is the cause."""
    LIKELY = 2
    """A failure of its own that may have more than one cause."""
    SURE = 3
    """A failure of its own that cannot mean anything else."""
    ROOT = 4
    """A fact of the machine or the cluster that explains what workers say."""


HINT, SIGN, LIKELY, SURE, ROOT = Weight


@dataclass(frozen=True, kw_only=True)
class LineRule:
    """``pattern`` is searched in a line, whatever the case of its letters.

    Its groups may be ``package``, which the fix names, and ``rank`` and ``node``, those at fault.
    ``most`` is the most that it weighs in a worker's own output. ``fix`` replaces the cause's.
    """

    cause: Cause
    weight: Weight
    pattern: str
    most: Weight = ROOT
    fix: str = ""

    @functools.cached_property
    def search(self) -> re.Pattern[str]:
        """The pattern for a line in lower case: ignoring case takes several times as long."""
        return re.compile(
            _UPPER.sub(lambda match: match[1].lower() if match[1] else match[0], self.pattern)
        )


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """A line, what it means and how much it weighs.

    ``rank`` is the rank at fault, if the line names it; ``also`` are other causes that the same
    line may mean.
    """

    cause: Cause
    weight: Weight
    line: LogLine
    package: str = ""
    rank: int | None = None
    fix: str = ""
    also: frozenset[Cause] = frozenset()


def table(text: str, most: Weight = ROOT, **parts: str) -> tuple[LineRule, ...]:
    """The rules of a family: ``text`` has causes with a weight, and below each its patterns,
    which may have a fix of their own behind `` => ``.

    ``parts`` replace their names in braces. Raises ``ValueError`` for an unknown cause, and
    ``KeyError`` for an unknown weight.
    """
    rules = []
    for line in text.split("\n"):
        if line[:1] in ("", "#"):
            continue
        if not line.startswith("  "):
            word, weight = line.split()
            continue
        for name, part in parts.items():
            line = line.replace(f"{{{name}}}", part)
        pattern, _, fix = line[2:].partition(" => ")
        rules.append(
            LineRule(
                cause=parse_cause(word),
                weight=Weight[weight.upper()],
                pattern=pattern,
                most=most,
                fix=fix,
            )
        )
    return tuple(rules)
