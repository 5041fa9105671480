"""Linux processes: a child's life tied to its parent's, and the end of whole trees.

Standard library only. Process groups cannot do this, because every worker is its own session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from launcher.contract.process_stat import read_stat

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61

_SIGSET_BYTES = 128
_SENDER = 4 if ctypes.sizeof(ctypes.c_void_p) == 8 else 3
"""Place of the sender's pid among the ints of a ``siginfo_t``, behind signal, errno and code."""
_POLL_S = 0.005
END_LIMIT_S = 10.0
"""How long killed processes are waited for: uninterruptible sleep outlives SIGKILL."""
CLEANER_S = 0.5
"""How long processes that unlink shared memory may take to end by themselves."""
# They end by themselves once their clients are gone, after they have unlinked shared memory.
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


class ParentGoneError(Exception):
    """The parent died before the child could tie its life to it."""


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Sends this process ``signum`` when its parent dies. Raises ParentGoneError if it has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:
        raise ParentGoneError(f"process {parent_pid} has gone")


def let_trace(pid: int) -> None:
    """Lets a process and its children read this one's stack, even if Yama allows only ancestors."""
    _prctl(_PR_SET_PTRACER, pid)


def _prctl(option: int, value: int) -> None:
    # Fails only on other kernels than Linux, where only the sweep at the end remains.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wait_for_signal(signums: Iterable[int], limit_s: float | None) -> tuple[int, int] | None:
    """Waits for one of these blocked signals; returns its number and the pid of its sender.

    Returns None after ``limit_s`` seconds, or earlier if this process was stopped meanwhile. A
    limit of None is no limit.

    Not ``signal.sigtimedwait``: in a process that is continued after the limit, it returns a signal
    that was never sent.
    """
    libc, waited_for = ctypes.CDLL(None), ctypes.create_string_buffer(_SIGSET_BYTES)
    libc.sigemptyset(waited_for)
    for signum in signums:
        libc.sigaddset(waited_for, int(signum))
    limit = None if limit_s is None else (ctypes.c_long * 2)(int(limit_s), int(limit_s % 1 * 1e9))
    info = (ctypes.c_int * 32)()
    received = int(libc.sigtimedwait(waited_for, info, limit))
    return (received, info[_SENDER]) if received > 0 else None


def send(pid: int, signum: int) -> None:
    """Signals a process, unless it has gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def open_fds() -> frozenset[int]:
    """The open descriptors, as the kernel lists them. Trying each number up to the limit would take
    too long: the limit may be 2**30."""
    listed = os.listdir("/proc/self/fd")
    # The listing itself used a descriptor, which is closed now.
    return frozenset(int(name) for name in listed if os.path.lexists(f"/proc/self/fd/{name}"))


def close_all_but(kept: Collection[int]) -> None:
    """Closes what is open, except the standard streams and ``kept``."""
    for fd in open_fds() - {0, 1, 2, *kept}:
        os.close(fd)


def reap() -> dict[int, int]:
    """Collects all children that have ended: their wait statuses by pid. Does not wait."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def children_of(pid: int) -> tuple[int, ...]:
    """Direct children of a process, zombies included."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        # The process has gone.
        pass
    return tuple(children)


def tree_of(pid: int) -> tuple[int, ...]:
    """A process and all its descendants."""
    tree = [pid]
    for parent in tree:
        tree += [child for child in children_of(parent) if child not in tree]
    return tuple(tree)


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Processor time that living processes have used so far, their reaped children's included."""
    ticks = sum(int(field) for pid in pids for field in read_stat(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def end_children(*, polite_s: float = 0.0) -> None:
    """Kills and reaps every descendant.

    Only for a process that adopts orphans. For ``polite_s`` seconds they get SIGTERM before
    SIGKILL; processes that unlink shared memory get half a second to end by themselves.
    Blocks until none is left, 10 s at most: uninterruptible sleep outlives SIGKILL.
    """
    start = time.monotonic()
    terminated: set[int] = set()
    while (passed_s := time.monotonic() - start) < END_LIMIT_S:
        reap()
        left = children_of(os.getpid())
        if not left:
            break
        for pid in left:
            if passed_s < CLEANER_S and _is_cleaner(pid):
                continue
            if passed_s < polite_s:
                if pid not in terminated:
                    send(pid, signal.SIGTERM)
                    terminated.add(pid)
            else:
                send(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _is_cleaner(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(name in command for name in _CLEANERS)
    return False
