"""How a worker, a node and a run ended: which workers only followed another one, which counts as
first, how its line is shown; the outcome of a node, which its agent writes. Pure."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from launcher.contract import protocol
from launcher.contract.causes import Cause, RunState, with_cause
from launcher.contract.errors import ExitCode, name_ending
from launcher.contract.records import changed_fields, parse_object, parse_record

COLLATERAL = re.compile(
    r"closed by peer|reset by peer|refused|Broken pipe|DistNetworkError|DistStoreError"
    r"|DistBackendError|Timed out waiting|recvValue failed|sendBytes failed"
    r"|remote process exited|ncclRemoteError|Connection closed|Watchdog caught collective"
    r"|waits for the others"
)
"""Found in the exception of a worker that failed because another one is gone."""

ENDED_BY_AGENT = "ended by its agent"
"""The ``exception`` of a worker that the agent ended, and that wrote none."""
_END_REQUESTED = re.compile(
    rf"SIGTERM|SignalException|got signal: 15|KeyboardInterrupt|^{ENDED_BY_AGENT}$"
)

LINE_CHARACTERS = 500
"""The most that is shown of a line that a worker wrote before its end."""
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
)
"""What the kernel or the process itself sends where a program breaks down."""
_WARNING = re.compile(r"\w*Warning: ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, repr=False)
class WorkerEnd:
    """How one worker ended.

    ``exit_code`` is negative for a signal; ``failed_at`` is in seconds since the epoch; ``cause``
    is why, as far as its node can know; ``exception`` is one line; the agent's ``log`` is the
    worker's folder, relative to RUN_DIR.

    The launcher adds the fields after ``steps``, and converts ``failed_at`` to its own clock:
    ``host`` is the machine where target ``hosts`` ran it, ``clock_offset_s`` how far its clock is
    ahead. There ``log`` is a file, and ``exception`` always says how the worker ended.
    """

    attempt: int
    rank: int
    local_rank: int
    exit_code: int
    failed_at: float
    cause: Cause
    exception: str
    log: str
    steps: int = 0
    node_index: int = 0
    host: str = ""
    clock_offset_s: float = 0.0
    log_tail: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<WorkerEnd {self.headline}>"

    @property
    def place(self) -> str:
        """Its rank, node and host in words."""
        host = f" ({self.host})" if self.host else ""
        return f"rank {self.rank} on node {self.node_index}{host}"

    @property
    def headline(self) -> str:
        """Its place and its exception, on one line."""
        # Cut, because a Python shell shows this for every failure.
        what = self.exception.partition("\n")[0][:200]
        return f"{self.place}: {what}"

    @property
    def last_words(self) -> str:
        """The last line of its log; empty if the log is its stdout, which does not say why."""
        is_output = self.log.endswith(f"/{protocol.STDOUT_FILE}")
        return "" if is_output else last_of(self.log_tail)

    @property
    def is_collateral(self) -> bool:
        """Whether the worker ended only because of another worker's failure."""
        return self.cause is Cause.TERMINATED or bool(COLLATERAL.search(self.exception))

    @property
    def has_left(self) -> bool:
        """Whether its exit code says that it was asked to leave."""
        return self.exit_code in frozenset({int(ExitCode.PREEMPTED), int(ExitCode.INTERRUPTED)})


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """What a guard saw of its worker's end, as in ``exit.json``; nothing in it is a judgement.

    ``exit_code`` is negative for a signal; ``failed_at`` is when it raised, or else ended, in
    seconds since the epoch. ``was_asked``: the agent had asked it to end; ``had_failed``: its
    script had failed before that, with ``own_code``. ``hung``: the agent has killed it because it
    made no step. ``oom_killed``: the kernel has killed a process of this container for memory since
    the worker began; ``has_room``: its disk takes a small file.
    """

    attempt: int
    rank: int
    local_rank: int
    exit_code: int
    failed_at: float
    was_asked: bool
    had_failed: bool = False
    own_code: int = 0
    hung: bool = False
    oom_killed: bool = False
    has_room: bool = True
    steps: int = 0


def last_of(lines: Sequence[str]) -> str:
    """The last line that is neither blank, nor a warning, nor indented: those belong to others."""
    telling = [
        line for line in lines if line.strip() and line[0] != " " and not _WARNING.search(line)
    ]
    return telling[-1] if telling else ""


def show_line(text: str) -> str:
    """A line that a worker wrote, fit for a terminal: cut, and its control characters escaped."""
    text = _COLOUR.sub("", text[: 2 * LINE_CHARACTERS])
    cut = text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]}..."
    return show_text(cut).replace("\t", "    ")


def show_text(text: str) -> str:
    """Lines that may hold anything, for a terminal or a page: control characters are escaped."""
    shown = (c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return "".join(shown)


def sort_ends(worker_ends: Iterable[WorkerEnd]) -> tuple[WorkerEnd, ...]:
    """Causes before collateral, those ended by the agent last, then by time and rank.

    Of those ended by the agent, a worker with a failure of its own comes before the others.
    """

    def order(end: WorkerEnd) -> tuple[bool, bool, bool, float, int]:
        is_ended = end.cause is Cause.TERMINATED
        is_mute = is_ended and not is_own_failure(end.exception)
        return end.is_collateral, is_ended, is_mute, end.failed_at, end.rank

    return tuple(sorted(worker_ends, key=order))


def is_own_failure(exception: str) -> bool:
    """Whether an exception is about neither another worker nor a request to end."""
    return (
        bool(exception)
        and not COLLATERAL.search(exception)
        and not _END_REQUESTED.search(exception)
    )


def is_out_of_memory(exit_codes: Collection[int], *, oom_killed: bool) -> bool:
    """Whether processes with these exit codes, negative for a signal, ran out of memory.

    ``oom_killed``: since they began, the kernel or an engine has killed a process of this container
    for memory. If no exit code is known, that alone decides.
    """
    return oom_killed and (not exit_codes or -signal.SIGKILL in exit_codes)


def cause_of_ending(code: int) -> Cause:
    """The cause that an exit code alone gives; the code is negative for a signal."""
    if code < 0:
        return Cause.CRASHED if -code in _CRASHES else Cause.KILLED
    return Cause.SCRIPT_ERROR if code else Cause.COMPLETED


def name_end(end: WorkerEnd) -> str:
    """How a worker ended, without its exception."""
    own_words = {Cause.HANG: "it hung", Cause.OUT_OF_MEMORY: "out of memory"}
    return own_words.get(end.cause) or name_ending(end.exit_code)


def describe(end: WorkerEnd) -> str:
    """A worker's rank, how it ended and what it wrote."""
    how, exception = name_end(end), end.exception
    if exception.startswith(how):  # as the launcher completes it
        return f"rank {end.rank}: {exception}"
    return f"rank {end.rank}: {how}" + (f" ({exception})" if exception else "")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A cause and its details; ``finished_at`` is in seconds since the epoch, 0 for an end now.

    The outcomes of a node and of a run are endings too.
    """

    cause: Cause
    detail: str = ""
    finished_at: float = 0.0

    @property
    def fault(self) -> str | None:
        """Whose mistake a failure is; None for other ends."""
        return self.cause.run_end.whose if self.cause.state is RunState.FAILED else None

    def summarize(self, first: WorkerEnd | None) -> str:
        """The detail, with the worker that failed ``first`` if that is why, in one text.

        For where the worker's own record is not shown beside it.
        """
        is_why = first and (self.fault in ("user", "training") or first.cause is self.cause)
        # Details of older versions name it.
        if not first or not is_why or f"rank {first.rank}: " in self.detail:
            return self.detail
        return "; last: ".join(filter(None, (self.detail, describe(first))))

    @property
    def exit_code(self) -> int:
        """That of a node's agent, and of the launcher that followed a run."""
        return int(self.cause.exit_code)


@dataclass(frozen=True, kw_only=True)
class NodeOutcome(Ending):
    """How one incarnation of a node ended. Times are seconds since the epoch.

    The engine's process fills it; the supervisor adds the times, and the cause where the engine
    could not know it. ``first`` is the worker that failed first, ``collateral`` are the others.
    ``ended_well`` is the first worker of the last attempt that ended with exit code 0.
    """

    node_index: int
    incarnation: int
    attempts: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    first: WorkerEnd | None = None
    collateral: tuple[WorkerEnd, ...] = ()
    ended_well: WorkerEnd | None = None

    @property
    def summary(self) -> str:
        """The node's detail and first failed worker, as ``summarize`` joins them."""
        return self.summarize(self.first)

    @property
    def worker_ends(self) -> tuple[WorkerEnd, ...]:
        """All workers that ended badly in the last attempt."""
        return (*((self.first,) if self.first else ()), *self.collateral)

    def to_json(self, indent: int | None = None) -> str:
        """The text of the file; ``protocol.NODE_OUTCOME_SCHEMA`` is its version."""
        version = {"schema": protocol.NODE_OUTCOME_SCHEMA}
        data = {**version, **vars(self), "exit_code": self.exit_code}
        return json.dumps(data, indent=indent, default=changed_fields)

    def to_short_json(self, limit_bytes: int) -> str:
        """The same, cut to what a pod's status holds: collateral failures are cut first."""
        shorter = replace(self, collateral=())
        for outcome in (self, shorter):
            if len(text := outcome.to_json()) <= limit_bytes:
                return text
        return replace(shorter, first=None, detail=self.summary[:500]).to_json()


def parse_node_outcome(text: str) -> NodeOutcome | None:
    """Reads what ``to_json`` wrote; None for anything else."""
    with contextlib.suppress(ValueError):
        if (data := parse_object(text)).get("schema") in (2, protocol.NODE_OUTCOME_SCHEMA):
            return parse_record(NodeOutcome, with_cause(data))
    return None
