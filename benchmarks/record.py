"""``python -m benchmarks.record FILE ...``: puts rows of reports into docs/benchmark-results.md.

Each FILE is what ``python -m benchmarks --json FILE`` wrote. The rows of a benchmark replace those
that the page has of it. Rows that were taken under load are refused.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.catalog import BENCHMARKS
from benchmarks.commands import ROOT, describe_command
from benchmarks.machine import MAX_LOAD
from benchmarks.measure import JSON, Report
from benchmarks.table import render_markdown

PAGE = ROOT / "docs" / "benchmark-results.md"
"""A section for each benchmark, which a later one replaces."""
BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
SECTION = "<!-- benchmark: {} -->"
_SECTIONS = re.compile(r"^<!-- benchmark: (\S+) -->$", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Rewrites the results of the page; 2, with nothing written, where a file cannot be taken."""
    if not arguments:
        print("usage: python -m benchmarks.record FILE ...", file=sys.stderr)
        return 2
    reports: list[Report] = []
    for file in arguments:
        try:
            found = JSON.validate_json(Path(file).read_bytes()).reports
        except (OSError, ValueError) as error:
            print(f"error: {file} is not a report: {error!r}", file=sys.stderr)
            print(f"  fix: python -m benchmarks --json {file}", file=sys.stderr)
            return 2
        for report in found:
            if report.load > MAX_LOAD:
                print(explain_load(f"{file}: {report.benchmark}", report.load), file=sys.stderr)
                again = describe_command([report.benchmark, "--json", file])
                print(f"  fix: when uptime says 1 or less, {again}", file=sys.stderr)
                return 2
        reports += found
    for report in reports:
        record(report)
    return 0


def record(report: Report) -> None:
    """Replaces the rows of one benchmark; whoever is cut off leaves the old page or the new one."""
    page = replace_section(
        PAGE.read_text(), report.benchmark, render_markdown(report), list(BENCHMARKS)
    )
    new = PAGE.with_suffix(".new")
    new.write_text(page)
    os.replace(new, PAGE)


def replace_section(page: str, name: str, section: str, order: Sequence[str]) -> str:
    """The page with the section of one benchmark replaced, or put where ``order`` has it.

    Raises ValueError for a page without the markers around the results.
    """
    before, begin, rest = page.partition(BEGIN)
    results, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {END if begin else BEGIN}")
    _, *parts = _SECTIONS.split(results)
    sections = {key: text.strip() for key, text in zip(parts[::2], parts[1::2], strict=True)}
    sections[name] = section
    known = [key for key in order if key in sections]
    others = [key for key in sections if key not in order]
    text = "\n\n".join(f"{SECTION.format(key)}\n{sections[key]}" for key in (*known, *others))
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def explain_load(given: str, load: float) -> str:
    """Why rows of a busy machine are not recorded."""
    return (
        f"error: {given}: the load is {load:.1f} at the start; above {MAX_LOAD:g} other work has "
        "the cores too, and no rows are recorded"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
