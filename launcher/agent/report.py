"""What the agent writes for others: the ledger, and the node's outcome. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from launcher.agent import disk
from launcher.agent.atomic_write import write_atomically
from launcher.agent.faults import sort_ends
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.node_outcome import NodeOutcome
from launcher.contract.reasons import Reason
from launcher.contract.worker_end import WorkerEnd, is_own_failure, name_cause

TAIL_BYTES = 32 * 1024
_FATAL = "Fatal Python error: "
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'\s+what\(\): *(.*)")
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")


class AgentLedger:
    """This agent's part of the run's ledger. A failed write never stops the training."""

    def __init__(self, path: Path, clock: Clock, *, node_index: int, incarnation: int) -> None:
        self._path, self._clock = path, clock
        self._fixed = {
            "schema": protocol.LEDGER_SCHEMA,
            "source": "agent",
            "node_index": node_index,
            "incarnation": incarnation,
        }
        self._torn = ""

    def write(self, event: str, *, attempt: int | None = None, **values: object) -> None:
        """Appends one event; a line is one write, so that processes may share the file."""
        now = {"at": self._clock.wall(), "monotonic_s": self._clock.monotonic()}
        line = json.dumps({**self._fixed, "attempt": attempt, "event": event, **now, **values})
        try:
            # Not its parents: a run folder that was removed must stay removed.
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"{self._torn}{line}\n")
            self._torn = ""
        except OSError:
            # Half a line may be there: the next one starts on a new line.
            self._torn = "\n"


def ledger_path(run_dir: Path, node_index: int, incarnation: int) -> Path:
    """Where the agent's part of the ledger lies."""
    name = protocol.AGENT_LEDGER.format(node_index=node_index, incarnation=incarnation)
    return run_dir / protocol.LEDGER_DIR / name


@dataclass(kw_only=True)
class AgentReport:
    """How one start of the agent ended, as it tells the supervisor."""

    reason: Reason
    detail: str = ""
    attempts: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    ends: tuple[WorkerEnd, ...] = ()

    def write(self, path: Path) -> None:
        """Replaces the file; on a full disk only the first of the workers' ends is kept."""
        data = {**vars(self), "reason": self.reason.value}
        ends = [asdict(end) for end in self.ends]
        texts = [json.dumps({**data, "ends": some}) for some in (ends, ends[:1], [])]
        write_atomically(path, *texts)


def read_agent_report(path: Path) -> AgentReport | None:
    """None where the agent died before it could say anything."""
    try:
        data = json.loads(path.read_text())
        ends = tuple(WorkerEnd(**end) for end in data.pop("ends"))
        return AgentReport(**{**data, "reason": Reason(data["reason"]), "ends": ends})
    except (OSError, ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How one worker ended: what its guard leaves in EXIT_FILE (see ``contract.protocol``)."""

    rank: int
    local_rank: int
    exit_code: int
    at: float
    steps: int
    terminated: bool = False
    had_failed: bool = False
    full_disk: Mapping[str, object] | None = None
    message: str = ""

    def to_json(self) -> str:
        """What ``from_json`` reads back equal."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> ExitRecord:
        """Raises ValueError or TypeError for any other text."""
        return cls(**json.loads(text))


def read_ends(
    folder: Path,
    attempt: int,
    *,
    run_dir: Path,
    hung: frozenset[int],
    out_of_memory: bool,
    killed: Sequence[ExitRecord] = (),
) -> tuple[WorkerEnd, ...]:
    """The workers of one attempt's folder that ended badly, causes first.

    ``killed`` are the records of workers whose guard had no time to write one.
    """
    paths = sorted(folder.glob(f"*/{protocol.EXIT_FILE}"))
    records = (*killed, *filter(None, map(_read_record, paths)))
    return sort_ends(
        _end_of(record, folder, attempt, run_dir, record.rank in hung, out_of_memory)
        for record in records
        if record.exit_code != 0
    )


def has_succeeded(exit_file: Path) -> bool:
    """Whether a worker ended well by itself; False where it left no record."""
    record = _read_record(exit_file)
    return record is not None and record.exit_code == 0 and not record.terminated


def _read_record(path: Path) -> ExitRecord | None:
    try:
        return ExitRecord.from_json(path.read_text())
    except (OSError, ValueError, TypeError):
        return None


def _end_of(
    record: ExitRecord, folder: Path, attempt: int, run_dir: Path, hung: bool, out_of_memory: bool
) -> WorkerEnd:
    folder = folder / protocol.RANK_FOLDER.format(rank=record.rank)
    message = record.message or _read_message(folder, record.exit_code)
    # It failed by itself, and was still on its way out when the agent ended them all.
    failed_first = record.had_failed and is_own_failure(message)
    terminated = record.terminated and not failed_first
    cause = name_cause(
        record.exit_code, terminated=terminated, hung=hung, out_of_memory=out_of_memory
    )
    if cause in ("exit", "signal") and (full := record.full_disk):
        if full["holds_run"]:
            cause = disk.CAUSE
        else:
            message = f"{message} (full: the disk at {full['at']})"
    return WorkerEnd(
        attempt=attempt,
        rank=record.rank,
        local_rank=record.local_rank,
        exit_code=record.exit_code,
        at=min(record.at, _failed_at(folder, otherwise=record.at)),
        cause=cause,
        message=message,
        log=os.path.relpath(folder, run_dir),
        steps=record.steps,
    )


def _failed_at(folder: Path, *, otherwise: float) -> float:
    """When the exception was written: a worker may take long to end after it."""
    try:
        return (folder / protocol.ERROR_FILE).stat().st_mtime
    except OSError:
        return otherwise


def _read_message(folder: Path, exit_code: int) -> str:
    """The uncaught exception's line; else the last on stderr, of an abort or of a full disk."""
    if error := read_error(folder):
        return error[:500]
    # Faulthandler's stacks follow, whose last line says nothing.
    told, fatal, stacks = read_tail(folder / protocol.STDERR_FILE).partition(_FATAL)
    lines = told.splitlines() or [fatal + line for line in stacks.splitlines()[:1]]
    last = lines[-1][:500] if lines else ""
    if exit_code == -6:
        # An exception of C++ that nobody caught, as NCCL's watchdog throws: frames follow it.
        thrown = _THROWN.findall(told)
        return ": ".join(thrown[-1])[:500] if thrown else last
    return last if disk.says_full(last) else ""


def read_error(folder: Path) -> str:
    """The first line of a worker's uncaught exception; empty where it wrote none."""
    try:
        message = json.loads((folder / protocol.ERROR_FILE).read_text())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return str(text).strip().partition("\n")[0]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    """The end of a text that may be anything; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode(errors="backslashreplace")
    except OSError:
        return ""


def read_oom_kills(path: Path = _CGROUP_EVENTS) -> int:
    """How many processes of this container the kernel killed for memory; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def make_outcome(
    report: AgentReport,
    *,
    exit_code: int,
    node_index: int,
    incarnation: int,
    started_at: float,
    finished_at: float,
) -> NodeOutcome:
    """The node's outcome: the first cause apart from what followed from it."""
    causes = [end for end in report.ends if not end.is_collateral]
    first = causes[0] if causes else (report.ends[0] if report.ends else None)
    return NodeOutcome(
        node_index=node_index,
        incarnation=incarnation,
        reason=report.reason,
        exit_code=exit_code,
        detail=report.detail,
        attempts=report.attempts,
        restarts=dict(report.restarts),
        started_at=started_at,
        finished_at=finished_at,
        first=first,
        collateral=tuple(end for end in report.ends if end is not first),
    )


def write_outcome(path: Path, outcome: NodeOutcome) -> None:
    """Replaces the node's ``outcome.json``; on a full disk by one that has room there."""
    with contextlib.suppress(OSError):
        write_atomically(path, *(f"{text}\n" for text in (outcome.to_json(2), *shorten(outcome))))


def take_own_end(path: Path) -> int | None:
    """The exit code of an earlier start that ended by itself. Forgets one that a signal ended."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        code = int(json.loads(path.read_text())["exit_code"])
        if code not in protocol.SIGNAL_CODES:
            return code
        path.unlink()
    return None


def write_termination(outcome: NodeOutcome, path: Path) -> None:
    """The outcome as a pod's termination message, if there is a place for one."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        file.truncate()
        file.write(render_termination(outcome))


def render_termination(outcome: NodeOutcome) -> str:
    """The outcome, cut to what a pod's status holds: collateral failures are cut first."""
    *texts, shortest = shorten(outcome)
    fitting = (text for text in texts if len(text) <= protocol.TERMINATION_LIMIT_BYTES)
    return next(fitting, shortest)


def shorten(outcome: NodeOutcome) -> tuple[str, ...]:
    """The outcome as ever shorter texts; the last one always fits. Pure."""
    shorter = replace(outcome, collateral=())
    bare = replace(shorter, first=None, detail=outcome.detail[:500])
    return tuple(one.to_json() for one in (outcome, shorter, bare, replace(bare, detail="")))
