"""``schema``: the job file's JSON Schema."""

from __future__ import annotations

import argparse
import sys

from launcher.job.schema import render_schema


def schema(_: argparse.Namespace) -> None:
    """Prints it."""
    sys.stdout.write(render_schema())
