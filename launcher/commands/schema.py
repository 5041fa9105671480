"""``schema``: the job file's JSON Schema."""

from __future__ import annotations

import argparse
import sys

from launcher.contract.errors import ExitCode
from launcher.job.schema import render_schema


def schema(_: argparse.Namespace) -> int:
    """Prints it; the exit code."""
    sys.stdout.write(render_schema())
    return int(ExitCode.OK)
