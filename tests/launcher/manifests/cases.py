"""A case of a rule: a right text, the edit that breaks the rule, and one that nearly does."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """``base`` is the right text's name, in which ``bad`` or ``good`` replaces ``old``."""

    rule: Any
    base: str
    old: str
    bad: str
    good: str

    @property
    def id(self) -> str:
        return f"{self.rule.id}-{self.base}"


def case(rule: Any, base: str, old: str, bad: str, good: str | None = None) -> Case:
    return Case(rule=rule, base=base, old=old, bad=bad, good=old if good is None else good)
