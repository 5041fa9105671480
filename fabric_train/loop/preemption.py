"""Stopping: the node agent's requests to commit or end, SIGTERM without a request, how long a save
gets then, exit code 143.

The agent writes ``stop-request`` into the node's folder; the training commits a checkpoint at a
step that all ranks agreed on and answers in ``stop-ack``; then the agent sends SIGTERM. SIGTERM
without a request means: exit now. Imports only the standard library.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fabric_train.checkpointing.durable import write_file
from fabric_train.worker_env import (
    ASKED_FILE,
    STOP_ACK_FILE,
    STOP_READY_FILE,
    STOP_REASON_RESIZE,
    STOP_REQUEST_FILE,
)

EXIT_PREEMPTED = 143
"""128 + SIGTERM, which schedulers retry."""
LOOK_INTERVAL_S = 0.1
"""Seconds between two looks for a request, because network folders are slow."""
GRACE_S = 1.0
"""Seconds that a save in flight gets after a SIGTERM without a request."""
LAST_WORD_S = 1.0
"""Seconds before a deadline that are reserved for exiting after the commit."""
REQUEST_LIMIT_S = 2.0
"""Seconds to wait for the agent's request after another's SIGTERM, or another node's stop."""
WAIT_FOR_SIGTERM_S = 30.0
"""How long a rank whose node was not asked to stop waits for SIGTERM."""


class PreemptedError(Exception):
    """The training was asked to stop and has committed; exit code 143."""


class Wish(enum.IntEnum):
    """What a node asks for; the highest of all ranks' wishes decides."""

    NOTHING = 0
    COMMIT = 1
    """A checkpoint, because nodes wait to join; the training continues."""
    STOP = 2


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the agent; ``at`` and ``deadline`` in seconds since the epoch."""

    reason: str
    at: float
    deadline: float

    @property
    def wish(self) -> Wish:
        """What the training has to do."""
        return Wish.COMMIT if self.reason == STOP_REASON_RESIZE else Wish.STOP


def _write_file(path: Path, content: bytes) -> None:
    # A full disk must not end the training.
    with contextlib.suppress(OSError):
        write_file(path, lambda file: file.write(content))


class Preemption:
    """Reads and answers the agent's requests; give ``node_dir`` to each node's first rank only."""

    def __init__(
        self,
        node_dir: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node_dir, self._clock, self._wall_clock = node_dir, clock, wall_clock
        self._looked_at = -LOOK_INTERVAL_S
        self._answered_at: float | None = None
        self._request: Request | None = None
        self._committed: tuple[int, Path | None] = (0, None)

    def announce(self) -> None:
        """Tells the agent that this training answers requests."""
        if self._node_dir is not None:
            _write_file(self._node_dir / STOP_READY_FILE, b"")

    def look(self) -> Wish:
        """What the unanswered request asks for, if any; cheap enough for every step."""
        now = self._clock()
        if now - self._looked_at >= LOOK_INTERVAL_S:
            self._looked_at = now
            self._request = self._read_request()
        return self._request.wish if self._request else Wish.NOTHING

    def answer(self, step: int, checkpoint: Path | None) -> None:
        """Tells the agent, if it asked, what was committed; no answer if ``checkpoint`` is None."""
        self._committed = step, checkpoint
        self._answer()

    def _answer(self) -> None:
        self._request = self._read_request()
        if self._request is None or self._node_dir is None:
            return
        self._answered_at, self._request = self._request.at, None
        step, checkpoint = self._committed
        if checkpoint is not None:
            text = json.dumps({"step": step, "checkpoint": str(checkpoint)}).encode()
            _write_file(self._node_dir / STOP_ACK_FILE, text)

    def wait_for_sigterm(self, check_world: Callable[[], object] = lambda: None) -> None:
        """Waits for SIGTERM; raises PreemptedError if none comes in time.

        Also answers a request that reaches this node later than its peers: all ranks committed.
        Where none does, only others were asked to leave, and ``check_world`` may raise.
        """
        began = time.monotonic()
        while True:
            request, waited_s = read_request(self._node_dir), time.monotonic() - began
            left_s = WAIT_FOR_SIGTERM_S - waited_s
            if request and request.wish is Wish.STOP:
                left_s = request.deadline - self._wall_clock()
            elif waited_s > REQUEST_LIMIT_S:
                check_world()
            if left_s <= 0:
                raise PreemptedError("stopped on request, after a commit")
            time.sleep(min(LOOK_INTERVAL_S, left_s))
            self._answer()

    def _read_request(self) -> Request | None:
        request = read_request(self._node_dir)
        return None if request is None or request.at == self._answered_at else request


def read_request(node_dir: Path | None) -> Request | None:
    """The agent's current request; None if there is none or it cannot be read."""
    if node_dir is None:
        return None
    try:
        request = json.loads((node_dir / STOP_REQUEST_FILE).read_bytes())
        return Request(
            reason=str(request["reason"]),
            at=float(request["at"]),
            deadline=float(request["deadline"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


# Weak, so that a finished saver does not keep its process group alive.
_unfinished: list[weakref.WeakMethod[Callable[[float], object]]] = []


def finish_before_exit(finish: Callable[[float], object]) -> None:
    """Registers a method to call before SIGTERM ends the process, with the seconds it may take."""
    _unfinished.append(weakref.WeakMethod(finish))


def _finish_all(limit_s: float) -> None:
    for reference in _unfinished:
        if finish := reference():
            finish(limit_s)


def _is_for_the_agent(node_dir: Path | None) -> bool:
    """Whether a SIGTERM went to all processes of the node, and the agent asks for a commit.

    Slurm sends such signals. The agent's own SIGTERM follows, after the commit.
    """
    asked_file = os.environ.get(ASKED_FILE)
    end = time.monotonic() + REQUEST_LIMIT_S
    while asked_file and time.monotonic() < end and not os.path.exists(asked_file):
        request = read_request(node_dir)
        if request is not None and request.wish is Wish.STOP:
            return True
        time.sleep(LOOK_INTERVAL_S)
    return False


def ignore_sigterm(_worker_id: int = 0) -> None:
    """A DataLoader's ``worker_init_fn``: its processes ignore SIGTERM under the agent.

    Slurm sends SIGTERM to all processes of a node. A DataLoader raises when one of its processes
    ends, and the training could not commit. The agent ends these processes with the training.
    """
    if ASKED_FILE in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def exit_on_sigterm(node_dir: Path | None = None) -> None:
    """Makes SIGTERM end this process with 143, even while it is stuck in C code.

    Methods of ``finish_before_exit`` get the rest of the deadline after a stop request, else
    ``GRACE_S``. Call it from the main thread. A handler that sets a flag would wait for the next
    step, which never comes if a peer has died. SIGTERM ends child processes as usual. If SIGTERM
    went to all processes of the node, this one waits for the agent's own, after the commit.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait() -> None:
        while signal.SIGTERM not in os.read(reader, 64) or _is_for_the_agent(node_dir):
            pass
        request = read_request(node_dir)
        limit_s = GRACE_S
        if request and request.wish is Wish.STOP:
            limit_s = max(GRACE_S, request.deadline - time.time() - LAST_WORD_S)
        # In another thread, because this one must not wait longer than the limit.
        last = threading.Thread(target=_finish_all, args=(limit_s,), daemon=True)
        last.start()
        last.join(limit_s)
        os._exit(EXIT_PREEMPTED)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()
    # The interpreter's C handler writes the byte, whichever thread gets the signal. sigwait would
    # need a blocked signal, which children inherit.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=forget)


def leave(text: str) -> NoReturn:
    """Ends the process as preempted, which counts as no failure and is retried."""
    sys.stderr.write(f"{text}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, because the interpreter's shutdown may wait for lost peers.
    os._exit(EXIT_PREEMPTED)
