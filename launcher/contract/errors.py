"""The errors that reach a person: what was given, the fix, and the numbers of the exit codes; and
what a person most likely meant by a word that is not known."""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; ``causes.py`` says which cause has which.

    Permanent causes lie in 1..127, everything worth a retry at 128 and above, because
    Kubernetes' ``ExitCode`` restart policy and its operators decide by that border.
    """

    OK = 0
    TRAINING_FAILED = 1
    BAD_INPUT = 2
    TARGET_UNREACHABLE = 3
    INTERRUPTED = 130
    KILLED = 137
    PREEMPTED = 143
    # Above the exit codes of signals, which end at 128 + 64.
    RENDEZVOUS_UNREACHABLE = 193
    RENDEZVOUS_CLOSED = 194
    STORE_LOST = 195
    AGENT_FAILED = 196
    GPU_BUSY = 197
    DISK_FULL = 198


def name_signal(number: int) -> str:
    """``SIGSEGV (11)``, or ``signal 99`` if this machine has no name for the number."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def name_ending(code: int) -> str:
    """How a process ended, from a code that is negative for a signal."""
    return name_signal(-code) if code < 0 else f"exit code {code}"


def name_exit_code(code: int | None) -> str:
    """A shell's exit code, with the signal that it stands for: ``139, SIGSEGV (11)``."""
    # A shell's exit code for signal n is 128 + n.
    number = (code or 0) - 128
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return f"{code}, {name_signal(number)}" if known else f"{code}"


class LauncherError(Exception):
    """An error whose text is meant for a person: one to three lines, never a stack trace.

    ``what`` names what was given and what is wrong with it; ``hint`` is the fix to type.
    """

    exit_code = ExitCode.TRAINING_FAILED

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.hint}" if self.hint else self.what


class InputError(LauncherError):
    """The job file, an option or an argument is wrong; nothing was started."""

    exit_code = ExitCode.BAD_INPUT


class KeyInputError(InputError):
    """A key is well-formed, but does not fit this machine or target; nothing was started.

    ``key`` is its path in the job file. The command line adds the file and the line.
    """

    def __init__(self, key: tuple[str | int, ...], what: str, hint: str) -> None:
        super().__init__(f"{'.'.join(map(str, key))}: {what}", hint)
        self.key = key


class DiskFullError(LauncherError):
    """The disk of the run folder is full; a retry is worth it once there is room."""

    exit_code = ExitCode.DISK_FULL


class TargetError(LauncherError):
    """The target cannot be reached or lacks what the job needs; nothing was started."""

    exit_code = ExitCode.TARGET_UNREACHABLE


class SilentTargetError(TargetError):
    """The target is there but has not answered in time. No other target may be used instead."""


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that is most like ``word``; empty if none is alike enough.

    ``cutoff``: how alike they have to be, 0 to 1.
    """
    import difflib  # takes 6 ms, and most words are known

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")
