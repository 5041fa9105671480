"""Writes what is made from launcher/job/spec.py: docs/job-file.md and jobs/job.schema.json.

Run it as ``python docs/generate.py`` after a change there; a test fails until then.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    sys.path.insert(0, str(ROOT))  # so that it works in a checkout that is not installed
    from launcher.job.reference import render_reference
    from launcher.job.schema import render_schema

    (ROOT / "docs/job-file.md").write_text(render_reference(), encoding="utf-8")
    (ROOT / "jobs/job.schema.json").write_text(render_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
