"""Finds out which worker failed first, apart from those that only fell with it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.agent.faults import WorkerEnd, is_own_failure, name_cause
from launcher.agent.report import read_ends
from launcher.contract import protocol
from launcher.contract.errors import ExitCode, name_signal
from launcher.contract.keeper_record import RECORD, read_record
from launcher.contract.node_plan import NodePlan
from launcher.contract.reasons import Reason
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import WorkerFailure, WorkerLog, parse_failures
from launcher.runs.folder import RunFolder
from launcher.runs.node_outcomes import read_node_outcome
from launcher.runs.outcome import FailureReport, RankFailure

TAIL_LINES = 12
TAIL_BYTES = 32 * 1024
SIGTERM_EXIT = -15

_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))\b.*$"
)

_NO_MODULE = re.compile(r"/\S.*: (No module named \S+|Error while finding module .+)")
"""What ``python -m`` says before it has run anything: the interpreter's path, and why."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch puts it before each line of a traceback once the process group exists."""


def decide_report(failures: Iterable[RankFailure], console_tail: tuple[str, ...]) -> FailureReport:
    """Orders failures: causes before collateral, earlier before later, lower ranks first.

    Those that were ended by their agent are last: they have nothing to say.
    """
    order = lambda f: (f.is_collateral, f.cause == "terminated", f.failed_at, f.rank)  # noqa: E731
    ordered = sorted(failures, key=order)
    return FailureReport(
        first=ordered[0] if ordered else None,
        collateral=tuple(ordered[1:]),
        console_tail=() if ordered else console_tail,
    )


def refine_by_first(reason: Reason, detail: str, first: RankFailure | None) -> tuple[Reason, str]:
    """Bad input where the first worker to fail says so, whatever started it. Pure.

    Exit code 2 is Python's own for a script that is not there, and argparse's; for a module that
    is not there Python's is 1, with one line.
    """
    if first is None or reason not in (Reason.TRAINING_FAILED, Reason.RESTARTS_EXHAUSTED):
        return reason, detail
    last = next((line for line in reversed(first.log_tail) if line.strip()), "")
    if missing := _NO_MODULE.fullmatch(last):
        return Reason.BAD_INPUT, f"rank {first.rank}: {missing[1]}"
    if first.exit_code == ExitCode.BAD_INPUT:
        return Reason.BAD_INPUT, f"rank {first.rank}: exit code {first.exit_code}"
    return reason, detail


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
        if plan.agent is None:
            found = _by_torchrun(run, own, node, console)
        else:
            found = _by_agent(run, own, node)
        failures += [_placed(failure, plan) for failure in found]
    return decide_report(failures, tail)


def _placed(failure: RankFailure, plan: LaunchPlan) -> RankFailure:
    """With its machine, and its time by the launcher's clock."""
    if failure.node_index >= len(plan.machines):
        return failure
    machine = plan.machines[failure.node_index]
    offset_s = machine.clock_offset_s
    failed_at = failure.failed_at - offset_s if failure.failed_at else 0.0
    return replace(failure, failed_at=failed_at, host=machine.name, clock_offset_s=offset_s)


# -- the node agent's word ---------------------------------------------------------------------


def _by_agent(run: RunFolder, logs: list[WorkerLog], node: NodePlan) -> list[RankFailure]:
    """From the node's outcome; from its workers' files where the node was killed without one."""
    outcome = read_node_outcome(run, node.node_index, node.incarnation)
    if outcome is not None:
        return [_of_end(run, end, node) for end in outcome.ends]
    attempt = max((log.attempt for log in logs), default=0)
    newest = [log for log in logs if log.attempt == attempt]
    folder = run.node_dir(node.node_index, node.incarnation)
    ends = read_ends(
        folder / protocol.ATTEMPT_FOLDER.format(attempt=attempt),
        attempt,
        run_dir=run.path,
        hung=frozenset(),
        out_of_memory=False,
    )
    reported = {end.log for end in ends}
    silent = [log for log in newest if log.folder not in reported]
    found = [_of_end(run, end, node) for end in ends] + _unreported(
        run, silent, node.node_index, node.nproc_per_node
    )
    return found or _by_keeper(run, node)


def _by_keeper(run: RunFolder, node: NodePlan) -> list[RankFailure]:
    """What a host says of a node that could say nothing itself, as on a full disk."""
    folder = run.node_dir(node.node_index, node.incarnation)
    record = read_record(folder)
    if not record.get("exit_code") or record.get("detail", "") in ("", protocol.LAUNCHER_GONE):
        return []
    console = run.console(node.node_index, node.incarnation)
    failure = RankFailure(
        node_index=node.node_index,
        rank=node.node_index * node.nproc_per_node,
        local_rank=0,
        exit_code=record["exit_code"],
        exception=record["detail"],
        failed_at=(folder / RECORD).stat().st_mtime,
        log=str(console),
        log_tail=tuple(_read_tail(console).splitlines()[-TAIL_LINES:]),
    )
    return [failure]


def _of_end(run: RunFolder, end: WorkerEnd, node: NodePlan) -> RankFailure:
    # Of a hang the stacks tell most: its own output simply stops.
    names = [protocol.STACKS_FILE] if end.cause == "hang" else []
    log, tail = _read_first(
        run.path / end.log, [*names, protocol.STDERR_FILE, protocol.STDOUT_FILE]
    )
    if not (run.path / end.log).is_dir():
        # On a cluster's claim: here is what the node's own output had of it.
        console = run.console(node.node_index, node.incarnation)
        log, tail = str(console), _read_of_worker(console, node.node_index, end.rank)
    return RankFailure(
        node_index=node.node_index,
        rank=end.rank,
        local_rank=end.local_rank,
        exit_code=end.exit_code,
        exception=_describe_end(end),
        failed_at=end.at,
        log=log,
        log_tail=tail,
        cause=end.cause,
        attempt=end.attempt,
    )


def _describe_end(end: WorkerEnd) -> str:
    own_words = {"hang": "it hung", "out-of-memory": "out of memory"}
    if end.cause in own_words:
        return own_words[end.cause] + (f" ({end.message})" if end.message else "")
    if end.message:
        return end.message
    if end.cause == "terminated":
        return "ended by its agent"
    return _describe_code(end.exit_code)


def _describe_code(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {name_signal(-exit_code)}"
    return f"exit code {exit_code}, no exception in its log"


def _read_first(folder: Path, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The first of the files that holds anything, and its last lines."""
    for name in names:
        if text := _read_tail(folder / name):
            return str(folder / name), tuple(text.splitlines()[-TAIL_LINES:])
    return str(folder / names[0]), ()


def _read_of_worker(console: Path, node_index: int, rank: int) -> tuple[str, ...]:
    """A worker's last lines among all that its node put out."""
    prefix = protocol.LINE_PREFIX.format(node_index=node_index).replace("${rank}", str(rank))
    lines = _read_tail(console, 4 * TAIL_BYTES).splitlines()
    own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return tuple(own[-TAIL_LINES:])


# -- torchrun's word ---------------------------------------------------------------------------


def _by_torchrun(
    run: RunFolder, logs: list[WorkerLog], node: NodePlan, console: str
) -> list[RankFailure]:
    reported = parse_failures(console)
    if not reported:
        return _unreported(run, logs, node.node_index, node.nproc_per_node)
    return [_rank_failure(run, failure, logs, node.node_index) for failure in reported]


def _rank_failure(
    run: RunFolder, failure: WorkerFailure, logs: list[WorkerLog], node_index: int
) -> RankFailure:
    own = [log for log in logs if log.local_rank == failure.local_rank]
    return _of_worker(run, failure, own[-1] if own else None, node_index)


def _of_worker(
    run: RunFolder, failure: WorkerFailure, worker: WorkerLog | None, node_index: int
) -> RankFailure:
    exception, failed_at = _read_exception(run, worker)
    log, tail = "", tuple[str, ...]()
    if worker is not None:
        stdout, stderr = worker.streams
        folder = run.path / worker.folder
        _, tail = _read_first(folder, (stderr, stdout))
        log = str(folder / stderr)
    return RankFailure(
        node_index=node_index,
        rank=failure.rank,
        local_rank=failure.local_rank,
        exit_code=failure.exit_code,
        exception=exception or _describe_code(failure.exit_code),
        failed_at=failed_at,
        log=log,
        log_tail=tail,
        cause=_cause_of(failure.exit_code, exception),
        attempt=worker.attempt if worker else 0,
    )


def _cause_of(exit_code: int, exception: str) -> str:
    """In the agent's words: torchrun ends a failed worker's siblings by SIGTERM.

    One that had failed by itself may still be on its way out then.
    """
    terminated = exit_code == SIGTERM_EXIT and not is_own_failure(exception)
    return name_cause(exit_code, terminated=terminated, hung=False, out_of_memory=False)


def _unreported(
    run: RunFolder, logs: list[WorkerLog], node_index: int, nproc: int
) -> list[RankFailure]:
    """Workers that left an exception, though their agent, killed, said nothing of them."""
    newest = max((log.attempt for log in logs), default=0)
    found = []
    for log in logs:
        if log.attempt == newest and _read_exception(run, log)[0]:
            rank = log.rank_on(node_index, nproc)
            local_rank = rank % nproc if log.local_rank is None else log.local_rank
            failure = WorkerFailure(rank=rank, local_rank=local_rank, exit_code=1, pid=0)
            found.append(_of_worker(run, failure, log, node_index))
    return found


def _read_exception(run: RunFolder, worker: WorkerLog | None) -> tuple[str, float]:
    """A worker's exception in one line, and when it left it; ("", 0) where there is none."""
    if worker is None:
        return "", 0.0
    folder = run.path / worker.folder
    error_file, stderr_file = folder / protocol.ERROR_FILE, folder / worker.streams[1]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        message = json.loads(error_file.read_text())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return _first_line(str(text)), error_file.stat().st_mtime
    with contextlib.suppress(OSError):
        return _last_exception(_read_tail(stderr_file)), stderr_file.stat().st_mtime
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
