"""Writes a report for people: as a table for the terminal, and as Markdown for the docs."""

from __future__ import annotations

from benchmarks.measure import Goal, Measurement, Report, Row

COLUMNS = ("what", "ours", "theirs", "ratio", "goal", "ok")
LEGEND = "Median (fastest to slowest) of {} interleaved runs. {}."
BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
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
    legend = LEGEND.format(report.repetitions, report.machine)
    return "\n".join([*text, "", legend, *_notes(report)]) + "\n"


def render_markdown(report: Report) -> str:
    """The report as a section of a Markdown page, with the command that gives it again."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(row) for row in report.rows)]
    return "\n".join(
        [
            "```",
            report.command,
            "```",
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            LEGEND.format(report.repetitions, report.machine),
            *(f"\n{note}." for note in _notes(report)),
        ]
    )


def replace_results(page: str, section: str) -> str:
    """The page with what stands between its two markers replaced; ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def format_measurement(measurement: Measurement) -> str:
    """``4.10 s (4.00 to 4.40)``: three digits, in the unit that suits the median."""
    median_s = float(f"{measurement.median_s:.3g}")  # first, or 0.9999 s would become 1000 ms
    scale, unit = next((each for each in UNITS if median_s >= each[0]), UNITS[-1])
    if measurement.unit != "s":
        scale, unit = 1.0, measurement.unit
    low, high = _digits(measurement.min_s / scale), _digits(measurement.max_s / scale)
    return f"{_digits(median_s / scale)} {unit} ({low} to {high})"


def _digits(number: float) -> str:
    return f"{number:#.3g}".rstrip(".") if number < 999.5 else f"{number:.0f}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.benchmark}: {row.what}",
        format_measurement(row.ours),
        format_measurement(row.theirs) if row.theirs else row.theirs_instead or "-",
        _format_ratio(row),
        _format_goal(row.goal) if row.goal else "-",
        {True: "yes", False: "NO", None: "-"}[row.ok],
    )


def _format_ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    if row.interval is None:
        return f"{row.ratio:.3f}"
    low, high = row.interval
    return f"{row.ratio:.3f} ({low:.3f} to {high:.3f})"


def _format_goal(goal: Goal) -> str:
    if goal.of == "ratio":
        return f"ratio <= {goal.most:g}"
    return f"<= {goal.most:g} s"


def _notes(report: Report) -> list[str]:
    return [f"{row.benchmark}: {row.note}" for row in report.rows if row.note]
