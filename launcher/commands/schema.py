"""``schema``: the job file's JSON Schema."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from launcher.commands.arguments import add_command
from launcher.contract.errors import ExitCode


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "print the job file's JSON Schema"
    add_command(commands, "schema", _schema, text, lambda parser: None)


def _schema(arguments: argparse.Namespace) -> int:
    from launcher.job.schema import render_schema

    sys.stdout.write(render_schema())
    return int(ExitCode.OK)
