"""``python -m benchmarks.record FILE``: puts a report into docs/benchmarks.md.

FILE is what ``python -m benchmarks --json FILE`` wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import ROOT
from benchmarks.measure import parse_report
from benchmarks.table import render_markdown, replace_results

PAGE = ROOT / "docs" / "benchmarks.md"


def main(arguments: Sequence[str]) -> int:
    """Rewrites the results of the page; 2 where the file is not a report."""
    if len(arguments) != 1:
        print("usage: python -m benchmarks.record FILE", file=sys.stderr)
        return 2
    try:
        report = parse_report(json.loads(Path(arguments[0]).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = f"python -m benchmarks --json {arguments[0]}"
        print(f"error: {arguments[0]} is not a report: {error}; fix: {fix}", file=sys.stderr)
        return 2
    PAGE.write_text(replace_results(PAGE.read_text(), render_markdown(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
