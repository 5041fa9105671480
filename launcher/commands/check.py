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

    from launcher.manifests.check import MAX_FILE_BYTES, check_manifests, render_checked
    from launcher.yamlfile.source import read_text

    texts = [
        ("<stdin>", sys.stdin.read()) if file == STDIN else (file, read_text(file, MAX_FILE_BYTES))
        for file in arguments.files
    ]
    checked = check_manifests(texts)
    if arguments.json:
        print(json.dumps([breach.to_jsonable() for breach in checked.breaches], indent=2))
    else:
        sys.stdout.write(render_checked(checked))
    return int(ExitCode.OK if checked.is_good else ExitCode.BAD_INPUT)
