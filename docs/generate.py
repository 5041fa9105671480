"""``make docs``: writes what is made from the sources.

These are jobs/job.schema.json, the keys and errors in docs/job-file*.md, the functions in
docs/python.md, the modules in CONTRIBUTING.md, the pages of docs/reference_pages.py, and the
pictures of docs/benchmark-results.md.
A test fails until it was run.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def render_all() -> dict[Path, str]:
    """Each file that is made, with its text."""
    from docs.job_file_pages import fill_functions, fill_reference, fill_targets
    from docs.modules import fill_modules
    from docs.pictures import render_pictures
    from docs.reference_pages import generated_pages
    from launcher.job.schema import render_schema

    reference, targets = DOCS / "job-file.md", DOCS / "job-file-targets.md"
    python, contributing = DOCS / "python.md", ROOT / "CONTRIBUTING.md"
    return {
        reference: fill_reference(reference.read_text("utf-8")),
        targets: fill_targets(targets.read_text("utf-8")),
        python: fill_functions(python.read_text("utf-8")),
        contributing: fill_modules(contributing.read_text("utf-8"), ROOT),
        ROOT / "jobs/job.schema.json": render_schema(),
        **generated_pages(DOCS),
        **render_pictures(DOCS),
    }


def main() -> None:
    for path, text in render_all().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # so that it works in a checkout that is not installed
    main()
