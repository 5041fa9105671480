"""Finds out which worker failed first, apart from those that only fell with it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.plan import LaunchPlan
from launcher.runs import RunFolder
from launcher.torchrun import WorkerFailure, WorkerLog, parse_failures

TAIL_LINES = 12
TAIL_BYTES = 32 * 1024
SIGTERM_EXIT = -15

_COLLATERAL = re.compile(
    r"closed by peer|reset by peer|refused|Broken pipe|DistNetworkError|DistStoreError"
    r"|DistBackendError|Timed out waiting|recvValue failed|sendBytes failed|remote process exited"
)
"""What a worker says when another one has gone: true of it, but not the cause."""

_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))\b.*$"
)

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch puts it before each line of a traceback once the process group exists."""


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """One worker that ended badly. ``failed_at`` is seconds since the epoch, for ordering only."""

    node_index: int
    rank: int
    local_rank: int
    exit_code: int
    exception: str
    failed_at: float
    log: str
    log_tail: tuple[str, ...]

    @property
    def is_collateral(self) -> bool:
        """Whether it speaks only of others that went away, or was ended by its own agent."""
        if self.exit_code == SIGTERM_EXIT:
            return True
        return bool(_COLLATERAL.search(self.exception))


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """The first cause and the workers that fell with it; ``console_tail`` where no worker spoke."""

    first: RankFailure | None
    collateral: tuple[RankFailure, ...]
    console_tail: tuple[str, ...]

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``outcome.json``."""
        return asdict(self)


def decide_report(failures: Iterable[RankFailure], console_tail: tuple[str, ...]) -> FailureReport:
    """Orders failures: causes before collateral, earlier before later, lower ranks first."""
    ordered = sorted(failures, key=lambda f: (f.is_collateral, f.failed_at, f.rank))
    return FailureReport(
        first=ordered[0] if ordered else None,
        collateral=tuple(ordered[1:]),
        console_tail=() if ordered else console_tail,
    )


def read_report(run: RunFolder, plan: LaunchPlan) -> FailureReport:
    """The failure of the plan's attempt, from what its nodes left in the run folder."""
    failures: list[RankFailure] = []
    tail: tuple[str, ...] = ()
    logs = run.worker_logs()
    for node in plan.nodes:
        console = _read_tail(run.console(node.node_index, node.incarnation), 4 * TAIL_BYTES)
        tail = tail or tuple(console.splitlines()[-TAIL_LINES:])
        own = [
            log
            for log in logs
            if (log.node_index, log.incarnation) == (node.node_index, node.incarnation)
        ]
        reported = parse_failures(console)
        failures += [_rank_failure(run, failure, own, node.node_index) for failure in reported]
        if not reported:
            failures += _unreported(run, own, node.node_index, node.nproc_per_node)
    return decide_report(failures, tail)


def _rank_failure(
    run: RunFolder, failure: WorkerFailure, logs: list[WorkerLog], node_index: int
) -> RankFailure:
    own = [log for log in logs if log.local_rank == failure.local_rank]
    folder = run.path / own[-1].folder if own else None
    stderr = _read_tail(folder / "stderr.log") if folder else ""
    stdout = _read_tail(folder / "stdout.log") if folder else ""
    exception, failed_at = _read_exception(folder, stderr)
    if not exception and failure.exit_code < 0:
        exception = f"killed by signal {-failure.exit_code}"
    return RankFailure(
        node_index=node_index,
        rank=failure.rank,
        local_rank=failure.local_rank,
        exit_code=failure.exit_code,
        exception=exception or f"exit code {failure.exit_code}, no exception in its log",
        failed_at=failed_at,
        log=str(folder / "stderr.log") if folder else "",
        log_tail=tuple((stderr or stdout).splitlines()[-TAIL_LINES:]),
    )


def _unreported(
    run: RunFolder, logs: list[WorkerLog], node_index: int, nproc: int
) -> list[RankFailure]:
    """Workers that left an exception, though their agent, killed, printed no report."""
    newest = max((log.attempt for log in logs), default=0)
    found = []
    for log in logs:
        exception, _ = _read_exception(run.path / log.folder, "")
        if log.attempt == newest and exception:
            failure = WorkerFailure(
                rank=node_index * nproc + log.local_rank,
                local_rank=log.local_rank,
                exit_code=1,
                pid=0,
            )
            found.append(_rank_failure(run, failure, logs, node_index))
    return found


def _read_exception(folder: Path | None, stderr: str) -> tuple[str, float]:
    """A worker's exception in one line, and when it left it; ("", 0) where there is none."""
    if folder is None:
        return "", 0.0
    error_file, stderr_file = folder / "error.json", folder / "stderr.log"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        message = json.loads(error_file.read_text())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return _first_line(str(text)), error_file.stat().st_mtime
    with contextlib.suppress(OSError):
        return _last_exception(stderr or _read_tail(stderr_file)), stderr_file.stat().st_mtime
    return "", 0.0


def _last_exception(stderr: str) -> str:
    """The line that names the exception of the last traceback."""
    after = (
        stderr.rpartition("Traceback (most recent call last):")[2] if "Traceback" in stderr else ""
    )
    lines = (_RANK_PREFIX.sub("", line) for line in after.splitlines())
    named = [line for line in lines if _EXCEPTION.match(line)]
    return named[-1] if named else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _read_tail(path: Path, limit_bytes: int = TAIL_BYTES) -> str:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit_bytes))
            return stream.read().decode("utf-8", errors="backslashreplace")
    except OSError:
        return ""
