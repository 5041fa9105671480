"""``check``: mistakes of Kubernetes manifests and batch scripts, before they cost GPU hours."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from launcher.commands.arguments import add_command
from launcher.contract.errors import ExitCode

STDIN = "-"


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "find the mistakes of Kubernetes manifests and batch scripts before they are submitted"
    add_command(commands, "check", _check, text, _add_arguments)


def _add_arguments(check: argparse.ArgumentParser) -> None:
    check.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="manifests that are applied together, or batch scripts; - is stdin",
    )
    check.add_argument("--json", action="store_true")


def _check(arguments: argparse.Namespace) -> int:
    import json

    from launcher.manifests.check import (
        MAX_FILE_BYTES,
        STDIN_NAME,
        check_manifests,
        render_checked,
    )
    from launcher.yamlfile.source import decode_text, read_text

    def read(file: str) -> tuple[str, str]:
        if file != STDIN:
            return file, read_text(file, MAX_FILE_BYTES)
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        return STDIN_NAME, decode_text(raw, STDIN_NAME, MAX_FILE_BYTES)

    checked = check_manifests([read(file) for file in arguments.files])
    if arguments.json:
        print(json.dumps([breach.to_jsonable() for breach in checked.breaches], indent=2))
    else:
        sys.stdout.write(render_checked(checked))
    return int(ExitCode.OK if checked.is_good else ExitCode.BAD_INPUT)
