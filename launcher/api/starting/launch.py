"""Starts a planned run and stays with it, here or in the background; what Ctrl-C, SIGTERM and a
closed terminal do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from launcher.api.starting.notify import notices
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import AwakeClock
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.follow.console import Console
from launcher.follow.loop import Follower
from launcher.follow.output_buffer import OutputBuffer
from launcher.follow.requests import request_stop
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from launcher.targets.subprocesses.background import Tell, in_background

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run that is followed in this process."""
CLOSED_TERMINAL = "the terminal of its launcher was closed; one with --detach goes on"


@contextlib.contextmanager
def open_streams(*, shows: str) -> Iterator[Console]:
    """A console on this process' stdout and stderr whose readers may pause, or go.

    Everything is written when it closes, unless the reader has gone. ``shows`` is the command
    that prints a run's output.
    """
    # A closed descriptor: Python has no stream for it.
    out = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    stdout = stderr = OutputBuffer(sys.stderr)
    # If both lead to the same terminal, pipe or file, one buffer keeps the order.
    if not os.path.samestat(os.fstat(out.fileno()), os.fstat(sys.stderr.fileno())):
        # A lambda, as ``console`` is made later, of this buffer.
        stdout = OutputBuffer(out, on_lost=lambda why: console.note_lost_stdout(why))
    console = Console(stderr, out=stdout, shows=shows)
    try:
        yield console
    finally:
        try:
            if stdout is not stderr and not stdout.close():
                console.note(f"not all of stdout was read; all of it: {shows}")
        finally:
            stderr.close()


def follow_here(
    run: RunFolder,
    plan: LaunchPlan,
    target: Target,
    console: Console,
    *,
    verbose: bool,
    on_submitted: Callable[[], None] = lambda: None,
    kept: Sequence[int] = (),
) -> Outcome:
    """Submits, calls ``on_submitted``, and follows in this process.

    The first SIGINT, SIGTERM or SIGHUP (a closed terminal) stops the run within its grace, a
    second one at once; so does the first while code or an image is sent. ``kept`` are those that
    came before (``keep_signals``). Raises ``TargetError``, and ``KeyboardInterrupt`` for a stop at
    once.
    """
    follower = Follower(run, plan, target, console, AwakeClock(), show_agents=verbose)
    with notices(run, plan, console.note):
        return follower.follow(on_submitted, lambda: _stop_on_signals(follower, target, kept))


def keep_signals() -> list[int]:
    """From now on SIGINT, SIGTERM and SIGHUP are kept in the list, for ``follow_here``.

    The run's folder is there, and only who follows the run records that it was interrupted.
    """
    kept = list[int]()
    _handle_ends(lambda signum, _: kept.append(signum))
    return kept


@contextlib.contextmanager
def ended_if_interrupted(run: RunFolder) -> Iterator[None]:
    """Ctrl-C in the block also ends a run in the background; after the block it is ignored."""
    try:
        yield
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        request_stop(run, keep=False)  # The follower's next turn ends what it has started.
        raise


def follow_in_background(
    run: RunFolder, plan: LaunchPlan, target: Target, note: Callable[[str], None]
) -> None:
    """Submits and follows in a process of its own session; returns once the nodes are started.

    ``note`` takes the launcher's lines up to the start; later ones go to the run's log alone.
    Raises ``TargetError`` or ``InputError`` as the background process met it.
    """
    log = run.path / protocol.LAUNCHER_LOG_FILE
    message = in_background(lambda tell: _follow_detached(run, plan, target, tell), log)
    if not message:
        raise TargetError(f"the launcher died; see {log}")
    tell = json.loads(message)
    for line in tell["notes"]:
        note(line)
    if (failure := tell["error"]) is not None:
        error = InputError if failure["bad_input"] else TargetError
        raise error(failure["what"], failure["hint"])


def _follow_detached(run: RunFolder, plan: LaunchPlan, target: Target, tell: Tell) -> None:
    console = _LogConsole()
    follower = Follower(run, plan, target, console, AwakeClock())
    try:
        with notices(run, plan, console.note):
            follower.follow(
                lambda: tell(json.dumps({"notes": console.take_notes(), "error": None})),
                lambda: _stop_on_signals(follower, target),
            )
    except LauncherError as error:
        notes = console.take_notes()
        # In the run's log too: the process that waited for the start may be gone.
        console.note(f"error: {error}")
        bad_input = isinstance(error, InputError)
        failure = {"what": error.what, "hint": error.hint, "bad_input": bad_input}
        tell(json.dumps({"notes": notes, "error": failure}))


class _LogConsole(Console):
    """The console of a process in the background, which goes to the run's log."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self._notes: list[str] | None = []

    def note(self, text: str) -> None:
        if self._notes is not None:
            self._notes.append(text)
        super().note(text)

    def take_notes(self) -> list[str]:
        """What was noted up to the first call; nothing is kept from then on."""
        notes, self._notes = self._notes or [], None
        return notes


def _stop_on_signals(follower: Follower, target: Target, kept: Sequence[int] = ()) -> None:
    def on_signal(signum: int, frame: FrameType | None) -> None:
        if follower.stop_reason is not None or target.is_sending:
            # A third signal must not interrupt the cleanup, nor its report.
            for ignored in ENDING:
                signal.signal(ignored, signal.SIG_IGN)
            raise KeyboardInterrupt
        typed = signum == signal.SIGINT
        # A program that sends SIGTERM expects its exit code.
        reason = Cause.STOP_REQUESTED if signum == signal.SIGTERM else Cause.INTERRUPTED
        detail = CLOSED_TERMINAL if signum == signal.SIGHUP else ""
        follower.interrupt("; Ctrl-C again ends it at once" if typed else "", reason, detail)

    _handle_ends(on_signal)
    for signum in kept[:1]:
        on_signal(signum, None)


def _handle_ends(handler: Callable[[int, FrameType | None], object]) -> None:
    for signum in ENDING:
        # Under nohup a hangup is ignored from the start, and stays so.
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, handler)
