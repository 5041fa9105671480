"""``check``: prints mistakes of manifests and scripts, before they cost GPU hours, and gives the
exit code; the rules are in ``manifests/``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from launcher.code.place import find_code
from launcher.contract.errors import ExitCode, InputError, KeyInputError
from launcher.job.file import find_place
from launcher.manifests.check import (
    MAX_FILE_BYTES,
    STDIN_NAME,
    check_manifests,
    read_job,
    render_checked,
)
from launcher.targets.preflight import check_script
from launcher.yamlfile.source import decode_text, read_text

STDIN = "-"


def check(arguments: argparse.Namespace) -> int:
    """Prints what is wrong with the files; returns the exit code."""

    def read_named(file: str) -> tuple[str, str]:
        if file != STDIN:
            text = read_text(file, MAX_FILE_BYTES)
        else:
            file, raw = STDIN_NAME, sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            text = decode_text(raw, file, MAX_FILE_BYTES)
        script = _find_script(text, file)
        return (script, read_text(script)) if os.path.isfile(script) else (file, text)

    checked = check_manifests([read_named(file) for file in arguments.files])
    if arguments.json:
        print(json.dumps([breach.to_jsonable() for breach in checked.breaches], indent=2))
    else:
        sys.stdout.write(render_checked(checked))
    return int(ExitCode.OK if checked.is_good else ExitCode.BAD_INPUT)


def _find_script(text: str, file: str) -> str:
    """The script that a job file names, as it is written there; empty for any other text.

    Raises ``InputError`` for code and a script that are not where the job says: ``run`` would
    refuse it too.
    """
    if (job := read_job(text, file)) is None:
        return ""
    try:
        place = find_code(job.command, job.code, job.workdir, Path.cwd())
        if place is None and not job.names_containers:
            check_script(job.command, Path.cwd() / (job.workdir or ""))
    except KeyInputError as error:
        what = f"{find_place(error.key, text, file)}: {error.what}"
        raise InputError(what, error.hint) from None
    return job.command[0]
