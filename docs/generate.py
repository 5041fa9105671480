"""Writes what is made from the sources: jobs/job.schema.json, the keys and errors in
docs/job-file.md, and the rules of ``launcher check`` in docs/manifests.md: first those of
manifests, then those of batch scripts.

Run it as ``python docs/generate.py`` after a change there; a test fails until then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.manifests.checks.rules import AnyRule

ROOT = Path(__file__).resolve().parent.parent


def render_rules(rules: Iterable[AnyRule]) -> str:
    """Rules as a table of docs/manifests.md or docs/check-scripts.md."""
    rows = [f"| `{rule.id}` | {rule.severity} | {rule.why} |\n" for rule in rules]
    return "".join(["| rule | severity | why |\n|---|---|---|\n", *rows])


def main() -> None:
    sys.path.insert(0, str(ROOT))  # so that it works in a checkout that is not installed
    from docs.reference import fill_reference
    from launcher.job.schema import render_schema
    from launcher.manifests.batch.check import BatchRule
    from launcher.manifests.checks.rules import Rule
    from launcher.manifests.scripts.rules import ScriptRule

    reference = ROOT / "docs/job-file.md"
    reference.write_text(fill_reference(reference.read_text("utf-8")), "utf-8")
    (ROOT / "jobs/job.schema.json").write_text(render_schema(), encoding="utf-8")
    table = re.compile(r"\| rule \|.*\n(\|.*\n)*")
    rules = iter((Rule, BatchRule, ScriptRule))
    for page in (ROOT / "docs/manifests.md", ROOT / "docs/check-scripts.md"):
        text = table.sub(lambda _: render_rules(next(rules)), page.read_text("utf-8"))
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
