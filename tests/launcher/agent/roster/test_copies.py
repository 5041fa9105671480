"""Copies of a state: as ``dataclasses.replace`` makes them, only faster."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.agent.roster.copies import replace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


def test_a_copy_has_the_changes_and_the_old_one_keeps_its_values() -> None:
    old = Pair(left=1, right=(2,))
    new = replace(old, left=3)
    assert new == dataclasses.replace(old, left=3) == Pair(left=3, right=(2,))
    assert old == Pair(left=1, right=(2,))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Pair has no field middle"):
        replace(Pair(left=1), middle=2)
