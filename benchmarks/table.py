"""Writes a report for people: as a table for the terminal, and as Markdown for the docs."""

from __future__ import annotations

from benchmarks.measure import Goal, Measurement, Report, Row

COLUMNS = ("what", "ours", "theirs", "ratio", "goal", "ok")
LEGEND = "Median (fastest to slowest) of {} interleaved runs. {}."
BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


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
            *(f"- {note}" for note in _notes(report)),
        ]
    )


def replace_results(page: str, section: str) -> str:
    """The page with what stands between its two markers replaced; ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def format_seconds(seconds: float) -> str:
    """Three digits, in the unit that suits them."""
    scale, unit = next((u for u in UNITS if seconds >= u[0]), UNITS[-1])
    return f"{seconds / scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.benchmark}: {row.what}",
        _format_measurement(row.ours),
        _format_measurement(row.theirs) if row.theirs else "-",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        _format_goal(row.goal) if row.goal else "-",
        {True: "yes", False: "NO", None: "-"}[row.ok],
    )


def _format_measurement(measurement: Measurement) -> str:
    low, high = format_seconds(measurement.min_s), format_seconds(measurement.max_s)
    return f"{format_seconds(measurement.median_s)} ({low} to {high})"


def _format_goal(goal: Goal) -> str:
    if goal.of == "ratio":
        return f"ratio <= {goal.most:g}"
    return f"<= {format_seconds(goal.most)}"


def _notes(report: Report) -> list[str]:
    return [f"{row.benchmark}: {row.note}" for row in report.rows if row.note]
