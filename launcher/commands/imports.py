"""``import`` and ``init``: a job file from what people have."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from launcher.api.choose_target import targets_of_jobs
from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.job.script import check_script
from launcher.manifests.check import MAX_FILE_BYTES, STDIN_NAME
from launcher.manifests.imports.draft import render_draft
from launcher.manifests.imports.init import render_job
from launcher.manifests.imports.read import import_text
from launcher.yamlfile.source import decode_text, read_text


def import_job(arguments: argparse.Namespace) -> None:
    """Prints or writes the job file for a launch line, a script or a manifest."""
    given, extra = arguments.file, arguments.extra
    if given is None:
        if not extra:
            raise InputError(
                "nothing to import", typed.command("import", "--", "torchrun", "train.py")
            )
        line = shlex.join(extra)
        draft = import_text(line, "the line given")
        draft.source = line if len(line) <= 80 else f"{line[:77]}..."
    elif given == "-":
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        draft = import_text(decode_text(raw, STDIN_NAME, MAX_FILE_BYTES), STDIN_NAME, extra)
    elif " " in given.strip() and not Path(given).exists():
        draft = import_text(given, "the line given", extra)
    else:
        draft = import_text(read_text(given, MAX_FILE_BYTES), given, extra)
    text = render_draft(draft, targets_of_jobs(), arguments.output or "job.yaml")
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        write_new(Path(arguments.output), text)
        told = [line[2:] for line in text.splitlines() if line.startswith("#")]
        print(*told, sep="\n", file=sys.stderr)


def init(arguments: argparse.Namespace) -> None:
    """Writes ``job.yaml`` for a script, and prints the next three commands."""
    check_script(arguments.script)
    folder = Path(arguments.script)
    script = folder / "__main__.py" if folder.is_dir() else folder
    beside = {path.name for path in script.resolve().parent.iterdir()}
    command = (arguments.script, *arguments.extra)
    text = render_job(command, read_text(script), beside)
    output = Path(arguments.output)
    write_new(output, text)
    for words, why in (
        (("check", str(script)), "what breaks with more than one process"),
        (("run", str(output)), "on this machine"),
        (("run", str(output), "--on", "TARGET"), f"elsewhere: {', '.join(targets_of_jobs())}"),
    ):
        print(f"{typed.command(*words)}  # {why}")


def write_new(path: Path, text: str) -> None:
    """Writes a new file. Raises ``InputError`` if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            f"{path} is there already", f"another name: -o other-{path.name}"
        ) from None
