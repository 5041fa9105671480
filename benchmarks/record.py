"""``python -m benchmarks.record FILE ...``: puts reports into docs/benchmarks.md, in this order.

Each FILE is what ``python -m benchmarks --json FILE`` wrote.
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
    """Rewrites the results of the page; 2 where a file is not a report."""
    if not arguments:
        print("usage: python -m benchmarks.record FILE ...", file=sys.stderr)
        return 2
    sections = []
    for file in arguments:
        try:
            sections.append(render_markdown(parse_report(json.loads(Path(file).read_text()))))
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = f"python -m benchmarks --json {file}"
            print(f"error: {file} is not a report: {error}; fix: {fix}", file=sys.stderr)
            return 2
    PAGE.write_text(replace_results(PAGE.read_text(), "\n\n".join(sections)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
