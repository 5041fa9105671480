"""``play``: a PyTorchJob's manifest in local containers, as the operator would run it."""

from __future__ import annotations

import argparse
from typing import Any

from launcher.commands.arguments import add_command


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "run a PyTorchJob's manifest in local containers, as the training operator would"
    add_command(commands, "play", _play, text, _add_arguments)


def _add_arguments(play: argparse.ArgumentParser) -> None:
    play.epilog = "The pods' stdout goes to stdout; their stderr and what happens go to stderr."
    play.add_argument(
        "files", nargs="+", metavar="FILE", help="the job's manifest, and those it refers to"
    )
    play.add_argument("--job", metavar="NAME", help="which, where the files hold several")
    play.add_argument("--image", metavar="REF", help="instead of the manifest's image")


def _play(arguments: argparse.Namespace) -> int:
    from launcher.commands.playing import play

    return play(arguments)
