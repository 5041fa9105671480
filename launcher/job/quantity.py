"""Quantities as Kubernetes writes them, such as ``512Mi``, ``1.5G`` and ``500m``. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?"
_QUANTITY = re.compile(rf"({_NUMBER})(n|u|m|[kMGTPE]|[KMGTPE]i|)")
_BINARY = {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}
_UNITS = {"": Fraction(1), **_SMALL, **{u: Fraction(n) for u, n in (_DECIMAL | _BINARY).items()}}


def parse_quantity(text: str) -> Fraction:
    """A quantity as a number: bytes, cores. Raises ``ValueError`` for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    return Fraction(match[1]) * _UNITS[match[2]]


def render_bytes(n_bytes: int) -> str:
    """Bytes in the largest binary unit that gives a whole number."""
    unit = next((u for u, size in reversed(_BINARY.items()) if n_bytes % size == 0), "")
    return f"{n_bytes // _BINARY.get(unit, 1)}{unit}"
