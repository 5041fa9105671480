"""``build``: an image from a base image, the requirements and the code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands.arguments import add_command, run_root
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError, KeyInputError

if TYPE_CHECKING:
    from launcher.code.place import CodePlace

EPILOG = """The tag goes to stdout, all else to stderr. The requirements are those beside the
script, or at the top of its repository: requirements.txt, else pyproject.toml. A torch that the
base holds stays as it is."""

NO_SCRIPT = ("SCRIPT",)
"""Where none is named: what is to be typed in the end."""


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "make an image from a base image, the requirements and the code"
    add_command(commands, "build", _build, text, _add_arguments)


def _add_arguments(build: argparse.ArgumentParser) -> None:
    build.epilog = EPILOG
    which = build.add_mutually_exclusive_group()
    which.add_argument(
        "job", metavar="JOB", nargs="?", help="a script or job file (default: all that is here)"
    )
    which.add_argument("-m", dest="module", metavar="MODULE", help="a module in place of a script")
    build.add_argument(
        "--code", metavar="DIR", help="the folder of the code, where another is meant"
    )
    build.add_argument(
        "--base", required=True, metavar="IMAGE", help="an image with Python and torch"
    )
    build.add_argument("--tag", required=True, metavar="REF", help="what the image shall be called")
    build.add_argument("--push", action="store_true", help="push it when it is built")
    build.add_argument(
        "--requirements", metavar="FILE", help="a requirements.txt or pyproject.toml"
    )
    build.add_argument(
        "--wheelhouse", metavar="DIR", help="install from the packages in it, without an index"
    )


def _build(arguments: argparse.Namespace) -> int:
    from launcher.code.record import read_code
    from launcher.follow.signals import raise_on_signals
    from launcher.job.script import is_script
    from launcher.targets.docker import build
    from launcher.targets.docker.requirements import find_requirements, read_requirements

    tag = arguments.tag
    build.check_tag(tag, pushes=arguments.push)
    wheels = build.read_wheels(Path(arguments.wheelhouse)) if arguments.wheelhouse else ()
    place = _find_code(arguments)
    given = Path(arguments.requirements) if arguments.requirements else None
    path = given or find_requirements([place.root / place.inner, place.root])
    requirements = read_requirements(path) if path else {}
    code = read_code(place, run_root(arguments))
    with raise_on_signals():
        builder = build.Builder(_show)
        _note(f"code: {code.record.files} files of {place.root}")
        for note in (place.note, *code.notes):
            _note(note)
        _note(f"requirements: {path if requirements else 'none'}")
        order = build.Order(
            base=arguments.base, tag=tag, code=code, requirements=requirements, wheels=wheels
        )
        built = builder.build(order)
        verdict = "is up to date" if built.is_same else "was built"
        cuda = f"CUDA {built.cuda}" if built.cuda else "no CUDA"
        _note(f"{tag} {verdict}: torch {built.torch}, {cuda}")
        if arguments.push:
            builder.push(tag)
            _note(f"{tag} was pushed")
    # As it is called in the image, but for a job file, which holds more than the command.
    words = [arguments.job] if arguments.job and not is_script(arguments.job) else place.command
    _note(f"to run it: {typed.command('run', *words, '--image', tag, '--code', 'image')}")
    print(tag)
    return int(ExitCode.OK)


def _find_code(arguments: argparse.Namespace) -> CodePlace:
    """Where the code is, as ``run`` finds it; without a script all of the current folder's."""
    from launcher.code.git import find_repository
    from launcher.code.place import CodePlace, find_code
    from launcher.job import script
    from launcher.job.file import read_job

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
    try:
        place = find_code(command, code, workdir, here)
    except KeyInputError as error:
        raise InputError(error.what, error.hint) from None
    if place is None:
        what = f"{named or arguments.module}: its code is not here"
        raise InputError(what, "--code DIR, the folder of the code")
    return place


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _note(text: str) -> None:
    if text:
        _show(f"launcher: {text}")
