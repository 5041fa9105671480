"""Quantities as Kubernetes writes them, such as ``512Mi``, ``1.5G`` and ``500m``. Pure."""

from __future__ import annotations

import re

_QUANTITY = re.compile(
    r"([+-]?)([0-9]{0,40})(?:\.([0-9]{0,40}))?(?:[eE]([+-]?[0-9]{1,2}))?([numkMGTPE]|[KMGTPE]i|)"
)
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}
_UNITS = {"": 1, **_DECIMAL, **_BINARY}
_PARTS = {"m": 1000, "u": 1000**2, "n": 1000**3}


def parse_quantity(text: str) -> float:
    """A quantity as a number: bytes, cores. Raises ``ValueError`` for anything else."""
    number, parts = _parse(text)
    return number / parts


def parse_whole(text: str) -> int:
    """A quantity as a whole number, rounded up as Kubernetes does. Raises ``ValueError``."""
    number, parts = _parse(text)
    return -(-number // parts)


def _parse(text: str) -> tuple[int, int]:
    """The quantity as an exact fraction."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is no quantity")
    sign, whole, after, exponent, unit = match.groups(default="")
    power = int(exponent or 0) - len(after)
    number = int(f"{sign}{whole}{after}") * _UNITS.get(unit, 1) * 10 ** max(power, 0)
    return number, _PARTS.get(unit, 1) * 10 ** max(-power, 0)


def render_bytes(n_bytes: int) -> str:
    """Bytes in the largest binary unit that gives a whole number."""
    unit = next((u for u, size in reversed(_BINARY.items()) if n_bytes % size == 0), "")
    return f"{n_bytes // _BINARY.get(unit, 1)}{unit}"
