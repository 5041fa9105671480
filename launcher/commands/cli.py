"""The command line: parses, calls a command, turns errors into lines and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from launcher.api.choose_target import rooms
from launcher.commands.parsing.other_programs import GONE, OF_NO_COMMAND, find_habit
from launcher.commands.parsing.parser import TAKES_TRAINING, Parser, check_known
from launcher.commands.parsing.printed_commands import options_to_find_runs, program_name
from launcher.commands.parsing.table import COMMANDS, add_commands
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError, KeyInputError, LauncherError
from launcher.targets.room import Plugin, load

ASKED = "_ARGCOMPLETE"
"""The variable that is set while a shell asks for completions."""
EPILOG = """exit codes: 0 success, 1 the training failed, 2 bad input, 3 target not reachable,
130 interrupted, 137 a node was lost, 143 stopped, 198 a disk is full. A script or module that is
not there is bad input. A worker that ends with code 2 also gives 2. Docs: launcher docs"""


class TellVersion(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser._print_message(load("launcher.commands.version:render_version")(), sys.stdout)
        parser.exit()


def run_command(argv: Sequence[str], *, is_plugin: bool = False) -> int:
    """Runs one command and returns its exit code; errors become a few lines.

    ``is_plugin``: another program called this, and all commands are for its target.
    """
    # Words after the first ``--`` go to the training as they are.
    at = argv.index("--") if "--" in argv else len(argv)
    words, extra = list(argv[:at]), list(argv[at + 1 :])
    plugin = next(room.plugin for room in rooms() if room.plugin) if is_plugin else None
    parser = _parser(plugin.typed if plugin else program_name())
    if ASKED in os.environ:
        load("launcher.commands.completion:complete")(parser)
    words = _place_last(words, plugin.options) if plugin else words
    with typed.as_called(parser.prog):
        return _run_command(parser, words, extra, plugin)


def _run_command(
    parser: argparse.ArgumentParser, words: list[str], extra: list[str], plugin: Plugin | None
) -> int:
    arguments = argparse.Namespace()
    try:
        if words and words[0] in GONE:
            raise InputError(f"{words[0]}: gone", f"{typed.program()} {GONE[words[0]]}")
        wrong, meant = find_habit(words, TAKES_TRAINING, [name for name, *_ in COMMANDS])
        if wrong:
            fix = _fix(parser, meant, extra) if meant else f"{typed.program()} --help"
            raise InputError(wrong, fix)
        arguments, unknown = parser.parse_known_args(words)
        arguments.extra, arguments.is_plugin = tuple(extra), plugin is not None
        _check(arguments, unknown, words, extra)
        with contextlib.ExitStack() as arguments.until_end:
            arguments.given = {room.name: room.read_options(arguments) for room in rooms()}
            found_by = options_to_find_runs(arguments)
            arguments.until_end.enter_context(typed.as_called(parser.prog, found_by))
            made = load(arguments.handler)(arguments)
            text, code = made if isinstance(made, tuple) else ("", made)
            if text:  # without it a closed stdout or full disk does not matter
                sys.stdout.write(text)
            return int(code or 0)
    except LauncherError as error:
        return _print_error(_placed(error, arguments))
    except KeyboardInterrupt:
        # A command about a run starts nothing, and the run may well go on.
        of_run = getattr(arguments, "command", None) in typed.ABOUT_RUNS
        left = "" if of_run else "; nothing was left running"
        print(f"interrupted{left}", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`launcher ps | head`): not an error of ours.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _print_error(_of_system(error))


def _fix(parser: argparse.ArgumentParser, words: list[str], extra: list[str]) -> str:
    """The words that were meant, as they can be typed."""
    if words[0] in OF_NO_COMMAND:
        return f"did you mean {typed.command(*words)}?"
    arguments, unknown = parser.parse_known_args(words)
    try:
        check_known(arguments, unknown, words, extra)
    except InputError as error:
        return error.hint
    return typed.command(*words, *(["--", *extra] if extra else []))


def _check(
    arguments: argparse.Namespace, unknown: list[str], words: list[str], extra: list[str]
) -> None:
    """What every command needs, before it does anything."""
    check_known(arguments, unknown, words, extra)
    if extra and arguments.command not in TAKES_TRAINING:
        *others, last = TAKES_TRAINING
        names = f"{', '.join(others)} and {last}"
        raise InputError(
            f"'--' and training arguments go with {names}, not {arguments.command}",
            f"leave out what stands behind --: {typed.command(arguments.command, '--help')}",
        )
    try:
        folder = os.getcwd()
    except OSError as error:
        why = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be used: {error}"
        raise InputError(f"the current folder {why}", "cd to one that is there") from None
    for word in (folder, *words, *extra):
        if word != word.encode(errors="replace").decode():
            fix = "rename it (mv)" if os.path.lexists(word) else "write it in UTF-8"
            raise InputError(f"{word!r} is not UTF-8, and a plan can only hold UTF-8", fix)
    for name, value in vars(arguments).items():
        if value == "" and name not in ("include", "exclude"):
            shown = name.upper() if name in ("job", "run") else f"--{name.replace('_', '-')}"
            what = f"{shown} is empty: is a shell variable not set?"
            see = typed.command(arguments.command, "--help")
            raise InputError(what, f"name one, or leave it out: {see}")


def _placed(error: LauncherError, arguments: argparse.Namespace) -> LauncherError:
    """Adds the file and line of the key, if the error is about a key."""
    if not isinstance(error, KeyInputError) or "file" not in arguments:
        return error
    place = load("launcher.commands.job_named:place_of")(error.key, arguments)
    return InputError(f"{place}: {error.what}", error.hint)


def _of_system(error: OSError) -> LauncherError:
    """What the operating system refused, with the file it is about."""
    what = error.strerror or str(error)
    if not isinstance(error.filename, str):
        return InputError(what, "df -h; ulimit -a")
    file = shlex.quote(error.filename)
    fix = f"namei -l {file} shows the owner, df -h the free space, mount whether it is read-only"
    return InputError(f"{error.filename}: {what}", fix)


def _print_error(error: LauncherError) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(f"error: {error}", file=sys.stderr)
    return int(error.exit_code)


def _place_last(argv: list[str], options: tuple[str, ...]) -> list[str]:
    """Moves options from before the command behind it: kubectl takes its own in both places."""
    at = 0
    while at < len(argv) and argv[at].startswith(options):
        # kubectl takes -nNAME, -n=NAME and -n NAME.
        at += 2 if argv[at] in options else 1
    return [*argv[at : at + 1], *argv[:at], *argv[at + 1 :]]


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=program,
        description="Launches multi-node PyTorch training from a script or a job file.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--version", action=TellVersion, nargs=0, help="print version, commit and torch"
    )
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_commands(commands)
    return parser
