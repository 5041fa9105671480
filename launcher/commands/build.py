"""What ``build`` does: finds the code, builds the image, says how to run it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launcher.code.git import find_repository
from launcher.code.place import CodePlace, find_code
from launcher.code.record import read_code
from launcher.commands.parsing.arguments import run_root
from launcher.contract import typed
from launcher.contract.errors import InputError
from launcher.follow.signals import raise_on_signals
from launcher.job import script
from launcher.job.file import read_job
from launcher.job.script import is_script
from launcher.targets.docker.build import Builder, Order, check_tag, read_wheels
from launcher.targets.docker.requirements import find_requirements, read_requirements

NO_SCRIPT = ("SCRIPT",)
"""If none is named: what the printed command has in its place."""


def build(arguments: argparse.Namespace) -> None:
    """Builds the image."""
    tag = arguments.tag
    check_tag(tag, pushes=arguments.push)
    wheels = read_wheels(Path(arguments.wheelhouse)) if arguments.wheelhouse else ()
    place = _find_code(arguments)
    given = Path(arguments.requirements) if arguments.requirements else None
    path = given or find_requirements([place.root / place.inner, place.root])
    requirements = read_requirements(path) if path else {}
    code = read_code(place, run_root(arguments))
    with raise_on_signals():
        builder = Builder(_show)
        _note(f"code: {code.record.files} files of {place.root}")
        for note in (place.note, *code.notes):
            _note(note)
        _note(f"requirements: {path if requirements else 'none'}")
        order = Order(
            base=arguments.base, tag=tag, code=code, requirements=requirements, wheels=wheels
        )
        built = builder.build(order)
        verdict = "is up to date" if built.is_same else "was built"
        cuda = f"CUDA {built.cuda}" if built.cuda else "no CUDA"
        _note(f"{tag} {verdict}: torch {built.torch}, {cuda}")
        if arguments.push:
            builder.push(tag)
            _note(f"{tag} was pushed")
    # The command as the image starts it; or the job file, which holds more than the command.
    words = [arguments.job] if arguments.job and not is_script(arguments.job) else place.command
    _note(f"to run it: {typed.command('run', *words, '--image', tag, '--code', 'image')}")
    print(tag)


def _find_code(arguments: argparse.Namespace) -> CodePlace:
    """Where the code is, as ``run`` finds it; without a script, that of the current folder."""
    here, code, workdir, named = Path.cwd(), arguments.code, None, arguments.job
    if arguments.module is not None:
        command: tuple[str, ...] = ("-m", arguments.module)
    elif named is None:
        root = (here / code if code else find_repository(here) or here).resolve()
        if not root.is_dir():
            raise InputError(f"--code {code}: no such folder", "--code DIR, the folder of the code")
        inner = here.relative_to(root).as_posix() if here.is_relative_to(root) else "."
        return CodePlace(root=root, inner=inner.removeprefix("."), command=NO_SCRIPT)
    elif script.is_script(named):
        script.check_script(named)
        command = (named,)
    else:
        job = read_job(named)
        command, code, workdir = job.command, code or job.code, job.workdir
    place = find_code(command, code, workdir, here)
    if place is None:
        what = f"{named or arguments.module}: its code is not here"
        raise InputError(what, "--code DIR, the folder of the code")
    return place


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _note(text: str) -> None:
    if text:
        _show(f"launcher: {text}")
