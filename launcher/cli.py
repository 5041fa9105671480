"""The command line: parses, calls a command, turns errors into lines and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from launcher import __version__
from launcher.commands import check, cluster, doctor, env, hosts, jobs, play, runs, schema
from launcher.commands.typed import spell
from launcher.errors import ExitCode, LauncherError

GROUPS = (jobs, runs, hosts, doctor, env, check, play, schema)
"""In the order of ``launcher --help``."""
EPILOG = """exit codes: 0 success, 1 the training failed, 2 bad input, 3 target not reachable,
130 interrupted, 137 a node was lost, 143 stopped, 198 a disk is full. Docs: docs/job-file.md"""


def run_command(argv: Sequence[str], *, is_plugin: bool = False) -> int:
    """Runs one command and returns its exit code; errors become one to three lines.

    ``is_plugin``: called by kubectl, for which everything is on a cluster.
    """
    own, extra = _split_extra(list(argv))
    parser = _parser("kubectl launcher" if is_plugin else "launcher")
    arguments = parser.parse_args(_place_last(own) if is_plugin else own)
    arguments.extra, arguments.is_plugin = tuple(extra), is_plugin
    if is_plugin:
        cluster.assume(arguments)
    if extra and arguments.command not in ("run", "render"):
        parser.error(f"'--' and training arguments go with run and render, not {arguments.command}")
    with contextlib.ExitStack() as arguments.until_end:
        arguments.until_end.enter_context(cluster.kubeconfig_of(arguments))
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        return int(arguments.handler(arguments))
    except LauncherError as error:
        print(f"error: {spell(str(error), arguments)}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; nothing was left running", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`launcher ps | head`): not an error of ours.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)


def _place_last(argv: list[str]) -> list[str]:
    """As kubectl takes them, its own options may come before the command as well."""
    at = 0
    while at < len(argv) and argv[at].partition("=")[0] in cluster.PLACE_OPTIONS:
        at += 1 if "=" in argv[at] else 2
    return [*argv[at : at + 1], *argv[:at], *argv[at + 1 :]]


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Launches multi-node PyTorch training from one job file.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in GROUPS:
        group.add(commands)
    return parser


def _split_extra(argv: list[str]) -> tuple[list[str], list[str]]:
    """Words after the first ``--`` go to the training as they are."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]
