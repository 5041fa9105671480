"""Writes a report for people: as a table for the terminal, and as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.intervals import Interval
from benchmarks.measure import Measurement, Report, Row

COLUMNS = ("what", "ours", "theirs", "ratio", "goal", "ok", "pairs")
LEGEND = "Medians (fastest to slowest) of interleaved samples; ratio and goal (95 % interval). "
TAKEN = "{}, load {:.1f} at the start, {}."
OPEN = "open"
"""Instead of yes or no: the interval holds the goal."""
UNKNOWN_FROM = 1e4
"""An interval whose ends are farther apart than this has none above."""
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def render_row(row: Row) -> str:
    """One row in one line."""
    return "  ".join(_cells(row))


def render_table(report: Report) -> str:
    """The report with aligned columns, and the notes below."""
    lines = [COLUMNS, *(_cells(row) for row in report.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*text, "", LEGEND + _taken(report), *_notes(report)]) + "\n"


def render_markdown(report: Report) -> str:
    """The report as a section of a Markdown page, with the command that gives it again."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(row) for row in report.rows)]
    return "\n".join(
        [
            f"## {report.benchmark}",
            "",
            "```text",
            report.command,
            "```",
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            _taken(report),
            *(f"\n{note}." for note in _notes(report)),
        ]
    )


def format_measurement(measurement: Measurement) -> str:
    """``4.10 s (4.00 to 4.40)``: three digits, in the unit that suits the median."""
    median_s = float(f"{measurement.median_s:.3g}")  # first, or 0.9999 s would become 1000 ms
    scale, unit = next((each for each in UNITS if median_s >= each[0]), UNITS[-1])
    if measurement.unit != "s":
        scale, unit = 1.0, measurement.unit
    low, high = (_digits(end(measurement.samples_s) / scale) for end in (min, max))
    return f"{_digits(median_s / scale)} {unit} ({low} to {high})"


def _digits(number: float) -> str:
    return f"{number:#.3g}".rstrip(".") if number < 999.5 else f"{number:.0f}"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.ratio and _with_interval(f"{row.ratio:.3f}", row.interval, "{:.3f}".format)
    return (
        f"{row.benchmark}: {row.what}",
        format_measurement(row.ours),
        format_measurement(row.theirs) if row.theirs else row.theirs_instead or "-",
        ratio or "-",
        _format_goal(row),
        OPEN if row.is_open else {True: "yes", False: "NO", None: "-"}[row.ok],
        str(len(row.ours.samples_s)),
    )


def _format_goal(row: Row) -> str:
    if row.goal is None:
        return "-"
    if row.goal.of == "ratio":
        return f"ratio <= {row.goal.most:g}"
    goal = f"<= {row.goal.most:g} {row.ours.unit}"
    return _with_interval(goal, row.median_interval, _digits)


def _with_interval(text: str, interval: Interval | None, form: Callable[[float], str]) -> str:
    if interval is None:
        return text
    low, high = interval
    # Two samples may leave the upper end at millions: that is not known.
    return f"{text} ({form(low)} to {form(high) if high <= UNKNOWN_FROM * low else '?'})"


def _taken(report: Report) -> str:
    return TAKEN.format(report.machine, report.load, report.taken)


def _notes(report: Report) -> list[str]:
    return [f"{row.benchmark}: {row.note}" for row in report.rows if row.note]
