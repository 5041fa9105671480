"""The words that the table of waits is written in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cannot:
    """Why a case cannot occur, or waits for nobody."""

    why: str


Case = tuple[str, ...] | Cannot
"""Tests by their ids below ``tests/``, or why there is none."""


def by(file: str, *names: str) -> tuple[str, ...]:
    """Tests of one file; ``file`` ends where the names begin."""
    return tuple(file + name for name in names)


@dataclass(frozen=True, kw_only=True)
class Row:
    """``functions`` are names as ``find_waits`` gives them, with blanks between."""

    functions: str
    who: str
    ends: str
    limit: str
    well: Case
    badly: Case
    frozen: Case
    never: Case

    @classmethod
    def alike(cls, functions: str, who: str, why: Cannot) -> Row:
        """One in which nobody can keep anybody waiting, always for the same cause."""
        return cls(
            functions=functions,
            who=who,
            ends=why.why,
            limit="",
            well=why,
            badly=why,
            frozen=why,
            never=why,
        )

    @property
    def cases(self) -> dict[str, Case]:
        """All four."""
        return {
            "ended well": self.well,
            "ended badly": self.badly,
            "frozen": self.frozen,
            "never came": self.never,
        }
