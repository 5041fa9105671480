"""``import``: prints or writes a job file from a script, a launch line, a batch script or a
manifest; the reading is in ``manifests/imports``.
"""

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
from launcher.manifests.imports.draft import Draft, render_draft
from launcher.manifests.imports.read import import_text
from launcher.manifests.imports.script import render_job
from launcher.yamlfile.source import decode_text, read_text


def import_job(arguments: argparse.Namespace) -> None:
    """Prints or writes the job file for a script, a launch line, a batch script or a manifest.

    Once it is written, tells what of the original has no key; of a script, what to type next.
    """
    given, extra, output = arguments.file, arguments.extra, arguments.output
    if given is not None and _is_script(given):
        text, notes = _import_script(given, extra, output or "job.yaml")
    else:
        text = render_draft(_import(given, extra), targets_of_jobs(), output or "job.yaml")
        notes = [line[2:] for line in text.splitlines() if line.startswith("#")]
    if output is None:
        sys.stdout.write(text)
    else:
        _write_new(Path(output), text)
        print(*notes, sep="\n", file=sys.stderr)


def _is_script(given: str) -> bool:
    """Whether the word names a script, and is not a quoted launch line that ends with one."""
    path = Path(given)
    is_one_word = " " not in given.strip() or path.exists()
    return path.is_dir() or (path.suffix in (".py", ".ipynb") and is_one_word)


def _import_script(name: str, extra: tuple[str, ...], output: str) -> tuple[str, list[str]]:
    """The job file for a script, and the three commands to type next."""
    check_script(name)
    script = Path(name, "__main__.py") if Path(name).is_dir() else Path(name)
    beside = {path.name for path in script.resolve().parent.iterdir()}
    text = render_job((name, *extra), read_text(script), beside)
    commands = (
        (("check", str(script)), "what breaks with more than one process"),
        (("run", output), "on this machine"),
        (("run", output, "--on", "TARGET"), f"elsewhere: {', '.join(targets_of_jobs())}"),
    )
    return text, [f"{typed.command(*words)}  # {why}" for words, why in commands]


def _import(given: str | None, extra: tuple[str, ...]) -> Draft:
    """What a file, a line or stdin says of a job; without either, the words behind ``--``."""
    if given is None and not extra:
        fix = typed.command("import", "--", "torchrun", "train.py")
        raise InputError("nothing to import", fix)
    if given is None:
        line = extra[0] if len(extra) == 1 else shlex.join(extra)
        draft = import_text(line, "the line given")
        draft.source = line if len(line) <= 80 else f"{line[:77]}..."
        return draft
    if given == "-":
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        return import_text(decode_text(raw, STDIN_NAME, MAX_FILE_BYTES), STDIN_NAME, extra)
    if " " in given.strip() and not Path(given).exists():
        return import_text(given, "the line given", extra)
    return import_text(read_text(given, MAX_FILE_BYTES), given, extra)


def _write_new(path: Path, text: str) -> None:
    """Writes a new file. Raises ``InputError`` if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            f"{path} is there already", f"another name: -o other-{path.name}"
        ) from None
