"""The pictures of docs/benchmarks.md, from the rows of docs/benchmark-results.md."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LABEL_WIDTH, PLOT_WIDTH, ROW = 310, 500, 46
OURS, THEIRS, INK, GRID, GROUND = "#1f8a70", "#b9774f", "#20262e", "#d9dee5", "#ffffff"
OWN_SIZES = re.compile(r"against (of )?[\d,]+|resuming to|one session, of")
"""Rows that compare this project with itself at another size."""
FAILURES = {
    "recovery: worker killed, to the next collective, nproc 2": "a worker is killed",
    "losses: node killed in a collective, against torchrun's defaults": "a node is killed in a"
    " collective",
    "losses: node killed in a collective, against tuned torchrun": "the same, torchrun tuned",
    "losses: node killed while workers sleep": "a node is killed, no collective runs",
    "losses: node 0 with the coordinator killed": "node 0 is killed, with the coordinator",
    "losses: node frozen while workers sleep, detection limit 10 s": "a node freezes (limit 10 s)",
}


class Row(NamedTuple):
    """One row of the results."""

    what: str
    ours: str
    theirs: str
    ratio: str
    goal: str
    ok: str


def read_rows(page: str) -> list[Row]:
    """All rows that the page holds."""
    cells = (re.split(r" \| ", line.strip("| ")) for line in page.splitlines() if "|" in line)
    return [Row(*row[:6]) for row in cells if len(row) == 7 and ": " in row[0]]


def seconds(text: str) -> float | None:
    """The median of a cell such as ``574 ms (561 to 575)``; None for one in words."""
    match = re.match(r"([\d.]+) (us|ms|s)\b", text)
    return float(match[1]) * UNITS[match[2]] if match else None


def failures(rows: list[Row]) -> str:
    """Seconds from each failure to the next collective, beside torchrun's."""
    found = {row.what: row for row in rows}
    height = 64 + ROW * len(FAILURES)
    parts = [_axis((0.1, 1, 10, 100), height - 34, "s")]
    for at, (what, name) in enumerate(FAILURES.items()):
        row, y = found[what], 34 + ROW * at
        parts.append(f'<text x="{LABEL_WIDTH - 12}" y="{y + 19}" text-anchor="end">{name}</text>')
        theirs = seconds(row.theirs)
        limit = 60.0 if row.theirs.startswith(">") else theirs
        told = row.theirs.split(" (")[0] if theirs is None else _short(theirs)
        ours = seconds(row.ours) or math.nan
        parts.append(_bar(y, ours, OURS, _short(ours)))
        parts.append(_bar(y + 15, limit, THEIRS, told))
    return _picture(height, "Seconds from a failure to the next collective", parts, legend=True)


def ratios(rows: list[Row]) -> str:
    """The ratio of each comparison with a peer, one line for each benchmark."""
    by_name: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        match = re.match(r"[\d.]+", row.ratio)
        if match and not OWN_SIZES.search(row.what):
            name = row.what.partition(": ")[0]
            by_name.setdefault(name, []).append((float(match[0]), row))
    height = 64 + 26 * len(by_name)
    parts = [_axis((0.01, 0.1, 1), height - 34, "x", low=0.003, high=3)]
    one = _x(1, 0.003, 3)
    parts.append(f'<path d="M{one:.1f} 26V{height - 34}" stroke="{INK}" stroke-width="1.5"/>')
    for at, (name, found) in enumerate(by_name.items()):
        y = 44 + 26 * at
        parts.append(f'<text x="{LABEL_WIDTH - 12}" y="{y + 5}" text-anchor="end">{name}</text>')
        for ratio, row in found:
            colour = THEIRS if row.ok == "NO" else OURS
            parts.append(
                f'<circle cx="{_x(ratio, 0.003, 3):.1f}" cy="{y}" r="5" fill="{colour}" '
                f'fill-opacity=".65"><title>{escape(row.what)}: {ratio:g}</title></circle>'
            )
    return _picture(height, "Ours divided by theirs: below 1 is less", parts)


def _x(value: float, low: float = 0.1, high: float = 100.0) -> float:
    part = math.log(max(value, low) / low) / math.log(high / low)
    return LABEL_WIDTH + PLOT_WIDTH * min(part, 1)


def _bar(y: float, value: float | None, colour: str, told: str) -> str:
    end = _x(value) if value else LABEL_WIDTH
    bar = f'<rect x="{LABEL_WIDTH}" y="{y}" width="{end - LABEL_WIDTH:.1f}" height="12" rx="2"'
    text = f'<text x="{end + 6:.1f}" y="{y + 11}" class="v">{escape(told)}</text>'
    return f'{bar} fill="{colour}"/>{text}'


def _axis(marks: tuple[float, ...], bottom: int, unit: str, **span: float) -> str:
    parts = []
    for mark in marks:
        x = _x(mark, **span)
        parts.append(f'<path d="M{x:.1f} 26V{bottom}" stroke="{GRID}"/>')
        label = f"{mark:g} {unit}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _picture(height: int, title: str, parts: list[str], *, legend: bool = False) -> str:
    width = LABEL_WIDTH + PLOT_WIDTH + 130
    keys = ""
    if legend:
        for x, colour, name in ((650, OURS, "here"), (720, THEIRS, "torchrun")):
            keys += f'<rect x="{x}" y="6" width="12" height="12" rx="2" fill="{colour}"/>'
            keys += f'<text x="{x + 17}" y="17">{name}</text>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{title}">',
            f"<style>text{{font:13px system-ui,sans-serif;fill:{INK}}}"
            ".v{font-size:11.5px}</style>",
            f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>',
            f'<text x="16" y="17" font-weight="600">{title}</text>{keys}',
            *parts,
            "</svg>\n",
        ]
    )


def render_pictures(docs: Path) -> dict[Path, str]:
    """Each picture, with its text."""
    rows = read_rows((docs / "benchmark-results.md").read_text("utf-8"))
    return {docs / "failures.svg": failures(rows), docs / "ratios.svg": ratios(rows)}
