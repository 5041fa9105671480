"""``build``: an image from a base image, the requirements and the code."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.commands.arguments import add_command

EPILOG = """The tag goes to stdout, all else to stderr. The requirements are those beside the
script, or at the top of its repository: requirements.txt, else pyproject.toml. A torch that the
base holds stays as it is."""


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
    from launcher.commands.building import build_image

    return build_image(arguments)
