"""``check``: prints mistakes of manifests and scripts, before they cost GPU hours, and gives the
exit code; the rules are in ``manifests/``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from launcher.contract.errors import ExitCode
from launcher.manifests.check import (
    MAX_FILE_BYTES,
    STDIN_NAME,
    check_manifests,
    render_checked,
    script_of_job,
)
from launcher.yamlfile.source import decode_text, read_text

STDIN = "-"


def check(arguments: argparse.Namespace) -> int:
    """Prints what is wrong with the files; returns the exit code."""

    def read(file: str) -> tuple[str, str]:
        if file != STDIN:
            text = read_text(file, MAX_FILE_BYTES)
            script = script_of_job(text, file)
            return (script, read_text(script)) if os.path.isfile(script) else (file, text)
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        return STDIN_NAME, decode_text(raw, STDIN_NAME, MAX_FILE_BYTES)

    checked = check_manifests([read(file) for file in arguments.files])
    if arguments.json:
        print(json.dumps([breach.to_jsonable() for breach in checked.breaches], indent=2))
    else:
        sys.stdout.write(render_checked(checked))
    return int(ExitCode.OK if checked.is_good else ExitCode.BAD_INPUT)
