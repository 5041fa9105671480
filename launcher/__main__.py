"""``python -m launcher``, the command ``launcher``, and kubectl's plugin."""

# Nothing that takes long: before ``main`` a Ctrl-C shows a traceback.
import contextlib
import gc
import io
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

BAD_INPUT, INTERRUPTED = 2, 130


def main(*, is_plugin: bool = False) -> None:
    """Runs the command line and ends the process with its code."""
    # Where Ctrl-C is ignored, as under nohup, it stays so.
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        signal.signal(signal.SIGINT, _end_at_once)
    # A command makes much and throws little away: with Python's 700, a tenth of its time goes into
    # looking for garbage. Not switched off, since ``run`` may last for weeks.
    gc.set_threshold(100_000)
    no_stdout = _open_closed_streams()
    from launcher.commands.cli import run_command

    # The one command whose work is not to print; it tells that its workers' stdout goes nowhere.
    if no_stdout and sys.argv[1:2] != ["run"]:
        say("stdout is closed, so nothing could be shown", "launcher ... >/dev/null")
        os._exit(BAD_INPUT)
    try:
        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = run_command(sys.argv[1:], is_plugin=is_plugin)
        except SystemExit as ending:  # argparse's: --help, --version, or an error that it has told
            code = ending.code if isinstance(ending.code, int) else 0
        code = _flush(code)
    except KeyboardInterrupt:  # before the command, or after all that it does
        _end_at_once()
    # Not sys.exit: taking pydantic's classes apart, one by one, lasts as long as the planning.
    os._exit(code)


def kubectl_main() -> None:
    """``kubectl launcher ...``: kubectl runs the program ``kubectl-launcher`` of the PATH."""
    main(is_plugin=True)


def _end_at_once(*_: object) -> "NoReturn":
    """Ctrl-C while modules are imported, which takes a tenth of a second: nothing was started."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def say(what: str, fix: str) -> None:
    """An error, where there may be no command line that tells it."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: {what}\n  fix: {fix}\n".encode())


def _open_closed_streams() -> bool:
    """Puts /dev/null in the place of standard streams that are closed; whether stdout was.

    Else the next file to be opened would become one of them, and take what is printed.
    """
    closed = [fd for fd in (0, 1, 2) if not _is_open(fd)]
    for fd in closed:
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    if 0 in closed:
        sys.stdin = open(0)  # noqa: SIM115 - as long as the process lives
    if 2 in closed:
        sys.stderr = open(2, "w")  # noqa: SIM115
    # What is no text in the terminal's encoding, such as a file's name, is shown escaped.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return 1 in closed


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush(code: int) -> int:
    """The exit code after all is written: what was lost on a full disk is no success."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # Its reader has gone (`launcher ps | head`): not an error of ours.
    except OSError as error:
        say(f"stdout: {error.strerror}", "make room there, or write elsewhere")
        code = code or BAD_INPUT
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
