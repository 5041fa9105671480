"""Children that another process has forked for this one.

A child whose parent ends becomes that of the nearest process above it that adopts orphans. Linux
only.
"""

from __future__ import annotations

import ctypes
import os

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37

_wanted = 0
_adopted_before = 0
_ended: dict[int, int] = {}
"""Exit codes of adopted children that have ended; negative for a signal."""


def begin() -> None:
    """From now on this process adopts orphans below it, until ``end`` was called as often."""
    global _wanted, _adopted_before
    if _wanted == 0:
        found = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
        _adopted_before = found.value
        _adopt(1)
    _wanted += 1


def end() -> None:
    """The other half of ``begin``."""
    global _wanted
    _wanted -= 1
    if _wanted == 0:
        _adopt(_adopted_before)


def poll(pid: int) -> int | None:
    """Exit code of an adopted child, negative for a signal; None while it runs."""
    if pid not in _ended:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            # As subprocess has it, where the system keeps no exit codes for this process.
            ended, status = pid, 0
        if not ended:
            return None
        _ended[pid] = os.waitstatus_to_exitcode(status)
    return _ended[pid]


def _adopt(value: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, value, 0, 0, 0)
