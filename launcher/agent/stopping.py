"""The conversation that stops a node: what a signal means, how long the training may take to
answer, when workers are ended or killed."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.causes import OF_RUNS, Cause, RunState, parse_cause
from launcher.contract.records import parse_record, read_object

REASON_OF_SIGNAL = {
    signal.SIGTERM: Cause.PREEMPTED,
    signal.SIGINT: Cause.INTERRUPTED,
    signal.SIGHUP: Cause.INTERRUPTED,
    signal.SIGQUIT: Cause.INTERRUPTED,
}
"""What a signal to the supervisor means."""

_STOPPING = frozenset(cause for cause in OF_RUNS if cause.state is RunState.STOPPED)
MARGIN_S = 5.0
"""How long before the deadline SIGTERM comes if the training does not answer; at most a quarter of
the grace."""
LAST_WORD_S = 2.0
"""The agent is killed so long after the deadline, at which guards kill their workers."""

SILENT_S = 5.0
"""If no worker has beaten for so long, their stacks are taken before they are ended."""
LOOK_LIMIT_S = 2.5
"""How long a stop waits for the stacks; at most a quarter of the grace."""
OUTLIVE_LIMIT_S = 10.0
"""An agent that still exists so long after SIGKILL hangs in the kernel, perhaps for ever."""


class Step(enum.Enum):
    """What the supervisor does next to an agent that must stop."""

    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(kw_only=True)
class Stop:
    """A stop in progress; times are seconds of the monotonic clock."""

    reason: Cause
    requested_at: float
    grace_s: float
    times_requested: int = 1
    look_file: Path | None = None
    """The file of the look at silent workers that was asked for before they are ended."""
    terminated_at: float | None = None
    killed_at: float | None = None

    @property
    def deadline(self) -> float:
        """When the workers must be gone."""
        return self.requested_at + self.grace_s

    def is_hopeless(self, now: float) -> bool:
        """Whether the agent outlives SIGKILL, as a process that hangs in a driver does."""
        return self.killed_at is not None and now >= self.killed_at + OUTLIVE_LIMIT_S

    def decide(
        self, now: float, *, will_answer: bool, acknowledged: bool, has_begun: bool = True
    ) -> Step:
        """The next step. ``will_answer``: the training said that it answers a stop request;
        ``acknowledged``: it has committed.

        A second request ends the wait for the answer, a third one kills. Before any worker has
        begun there is nothing to save, and torch may hear no signal: its static rendezvous blocks.
        """
        if self.times_requested > 2 or now >= self.deadline + LAST_WORD_S:
            return Step.KILL
        if self.terminated_at is not None:
            late = not has_begun and now >= self.terminated_at + LAST_WORD_S
            return Step.KILL if late else Step.WAIT
        margin_s = min(MARGIN_S, self.grace_s / 4)
        look_until = self.requested_at + min(LOOK_LIMIT_S, self.grace_s / 4)
        if (
            self.look_file
            and now < look_until
            and self.times_requested == 1
            and not self.look_file.exists()
        ):
            return Step.WAIT
        waits = will_answer and not acknowledged and self.times_requested == 1
        return Step.WAIT if waits and now < self.deadline - margin_s else Step.TERMINATE


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """The request of STOP_REQUEST_FILE; times are seconds since the epoch."""

    reason: str
    at: float
    deadline: float


class StopFiles:
    """The three files of the conversation, in the node's folder.

    A file that a failing storage does not show counts as absent.
    """

    def __init__(self, node_dir: Path) -> None:
        self._request = node_dir / protocol.STOP_REQUEST_FILE
        self._ready = node_dir / protocol.STOP_READY_FILE
        self._answer = node_dir / protocol.STOP_ACK_FILE

    def clear(self) -> None:
        """Forgets an earlier conversation of the same incarnation."""
        for path in (self._request, self._ready, self._answer):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def write_request(self, reason: str, *, at: float, deadline: float) -> None:
        """Writes the request, if that is possible; times are seconds since the epoch."""
        request = StopRequest(reason=reason, at=at, deadline=deadline)
        with contextlib.suppress(OSError):
            # Else the answer to an earlier request would be taken for this one's.
            self._answer.unlink(missing_ok=True)
            write_atomically(self._request, json.dumps(asdict(request)))

    def is_requested(self) -> bool:
        """Whether a request is there, of any reason."""
        return os.path.exists(self._request)

    def read_request(self) -> StopRequest | None:
        """The present request; None where there is none."""
        with contextlib.suppress(ValueError):
            return parse_record(StopRequest, read_object(self._request))
        return None

    def is_for_resize(self) -> bool:
        """Whether the present request only makes room for other nodes."""
        request = self.read_request()
        return request is not None and request.reason == protocol.STOP_REASON_RESIZE

    def forget_resize(self) -> None:
        """Withdraws a request that only makes room, and its answer."""
        if self.is_for_resize():
            self._request.unlink(missing_ok=True)
            self._answer.unlink(missing_ok=True)

    def training_will_answer(self) -> bool:
        """Whether the training said that it will answer."""
        return os.path.exists(self._ready)

    def has_answer(self) -> bool:
        return os.path.exists(self._answer)

    def read_answer(self) -> Mapping[str, object] | None:
        """What the training committed; None before it did."""
        return read_object(self._answer) or None


def read_stop_file(environ: Mapping[str, str]) -> Cause | None:
    """The reason in STOP_FILE, if it asks this node to stop. Does not wait.

    An empty file asks for nothing yet. If it is there from the start, its reason is seen at once:
    clients of network file systems remember for long that a file was missing.
    """
    path = environ.get(protocol.STOP_FILE)
    if not path:
        return None
    try:
        text = Path(path).read_text(errors="replace").strip()
    except OSError:
        return None
    if text not in _STOPPING:
        return Cause.STOP_REQUESTED if text else None
    return parse_cause(text)
