"""Columns of text, the same for a person and for a pipe: never wrapped, never cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def render_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, with the cells of a column at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
