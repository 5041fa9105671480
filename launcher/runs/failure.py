"""Finds the worker that failed first, the end of its log, and those that failed because of it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path

from launcher.agent.endings import judge_worker, name_who_left
from launcher.agent.worker_exit import read_ends, read_exception, read_tail
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import (
    ENDED_BY_AGENT,
    NodeOutcome,
    WorkerEnd,
    WorkerExit,
    name_end,
    show_line,
)
from launcher.contract.errors import ExitCode
from launcher.contract.node_plan import NodePlan
from launcher.contract.process_stat import RECORD, read_record
from launcher.contract.reports import look
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.torchrun import WorkerLog, parse_failures, split_console
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import clock_offsets
from launcher.runs.outcome import FailureReport

TAIL_LINES = 12
TAIL_BYTES = 32 * 1024
CONSOLE_BYTES = 4 * TAIL_BYTES


def decide_report(failures: Iterable[WorkerEnd], console_tail: tuple[str, ...]) -> FailureReport:
    """The first cause and the workers that fell with it; without these, ``console_tail``.

    ``failures`` may hold workers that ended with exit code 0.
    """
    ordered = name_who_left(failures)
    return FailureReport(
        first=ordered[0] if ordered else None,
        collateral=ordered[1:],
        console_tail=() if ordered else console_tail,
    )


def read_report(run: RunFolder, plan: LaunchPlan) -> FailureReport:
    """The failure of the plan's attempt, from what its nodes left in the run folder."""
    failures: list[WorkerEnd] = []
    tail: tuple[str, ...] = ()
    logs = run.worker_logs()
    for node in plan.nodes:
        place = (node.node_index, node.incarnation)
        node_logs = [log for log in logs if (log.node_index, log.incarnation) == place]
        reader = _NodeReader(run, node, node_logs)
        tail = tail or _last_lines(read_tail(reader.console, CONSOLE_BYTES))
        failed = reader.by_torchrun() if plan.agent is None else reader.by_agent()
        failures += [_placed(failure, plan) for failure in failed]
    return decide_report(failures, tail)


def read_node_outcomes(run: RunFolder, plan: LaunchPlan) -> tuple[NodeOutcome, ...]:
    """Outcomes of the plan's incarnations, by the launcher's clock; killed ones left none."""
    offsets = clock_offsets(plan)
    outcomes = (run.read_node_outcome(node.node_index, node.incarnation) for node in plan.nodes)
    return tuple(
        replace(outcome, finished_at=outcome.finished_at - offsets.get(outcome.node_index, 0.0))
        for outcome in outcomes
        if outcome is not None
    )


def read_failures(run: RunFolder, plan: LaunchPlan) -> tuple[WorkerEnd, ...]:
    """The workers that failed by themselves in any attempt of any incarnation, oldest first."""
    planned = {node.node_index: node for node in plan.nodes}
    failures: list[WorkerEnd] = []
    for index, incarnation in run.incarnations():
        if index in planned:
            reader = _NodeReader(run, replace(planned[index], incarnation=incarnation), ())
            attempts = run.node_dir(index, incarnation).glob("attempt-*")
            ends = (end for folder in attempts for end in read_ends(folder, run.path))
            failed = (end for end in ends if end.exit_code != 0 and not end.is_collateral)
            failures += [_placed(reader.of_end(end), plan) for end in failed]
    return tuple(sorted(failures, key=lambda end: end.failed_at))


def _placed(failure: WorkerEnd, plan: LaunchPlan) -> WorkerEnd:
    """Adds the worker's machine, and converts its time to the launcher's clock."""
    if failure.node_index >= len(plan.machines):
        return failure
    machine = plan.machines[failure.node_index]
    offset_s = machine.clock_offset_s
    failed_at = failure.failed_at - offset_s if failure.failed_at else 0.0
    return replace(failure, failed_at=failed_at, host=machine.name, clock_offset_s=offset_s)


class _NodeReader:
    """Reads what one incarnation of a node left; ``logs`` are those of its workers."""

    def __init__(self, run: RunFolder, node: NodePlan, logs: Sequence[WorkerLog]) -> None:
        self._run, self._node, self._logs = run, node, logs
        self._folder = run.node_dir(node.node_index, node.incarnation)
        self.console = run.console(node.node_index, node.incarnation)

    def by_agent(self) -> list[WorkerEnd]:
        """From the node's outcome; from its workers' files if the node left none."""
        outcome = self._run.read_node_outcome(self._node.node_index, self._node.incarnation)
        if outcome is not None:
            well = (outcome.ended_well,) if outcome.ended_well else ()
            return [self.of_end(end) for end in (*outcome.worker_ends, *well)]
        attempt = self._newest_attempt()
        folder = self._folder / protocol.ATTEMPT_FOLDER.format(attempt=attempt)
        ends = read_ends(folder, self._run.path)
        silent = self._unreported({end.log for end in ends})
        return [*map(self.of_end, ends), *silent] or self._by_keeper()

    def by_torchrun(self) -> list[WorkerEnd]:
        """From torchrun's report on the console; from the workers' files if it made none."""
        ends = []
        for rank, local_rank, exit_code in parse_failures(read_tail(self.console, CONSOLE_BYTES)):
            logs = [log for log in self._logs if log.local_rank == local_rank]
            ends.append(self._of_worker(rank, local_rank, exit_code, logs[-1] if logs else None))
        return ends or self._unreported(set())

    def _newest_attempt(self) -> int:
        return max((log.attempt for log in self._logs), default=0)

    def _unreported(self, reported: Set[str]) -> list[WorkerEnd]:
        """Workers that left an exception, but whose agent was killed before it reported them."""
        ends = []
        nproc = self._node.nproc_per_node
        for log in self._logs:
            is_newest = log.attempt == self._newest_attempt() and log.folder not in reported
            if is_newest:
                rank = log.rank_on(self._node.node_index, nproc)
                local_rank = rank % nproc if log.local_rank is None else log.local_rank
                ends.append(self._of_worker(rank, local_rank, 1, log))
        return [end for end in ends if end.exception != name_end(end)]

    def _by_keeper(self) -> list[WorkerEnd]:
        """The host's record of a node that could not write anything, for example on a full disk."""
        record = read_record(self._folder)
        detail = record.get("detail", "")
        if record.get("exit_code") == ExitCode.DISK_FULL:
            detail = detail or os.strerror(errno.ENOSPC)
        if not record.get("exit_code") or detail in ("", protocol.LAUNCHER_GONE):
            return []
        worker_exit = WorkerExit(
            rank=self._node.node_index * self._node.nproc_per_node,
            local_rank=0,
            attempt=0,
            exit_code=record["exit_code"],
            failed_at=(self._folder / RECORD).stat().st_mtime,
            was_asked=False,
        )
        tail = _last_lines(read_tail(self.console, TAIL_BYTES))
        return [self._with_log(judge_worker(worker_exit, detail), str(self.console), tail)]

    def of_end(self, end: WorkerEnd) -> WorkerEnd:
        """What the agent recorded, with the worker's log and its last lines."""
        folder = self._run.path / end.log
        log, tail = _read_first(folder, [protocol.STDERR_FILE, protocol.STDOUT_FILE])
        exception = _describe_end(end)
        if crash := read_tail(folder / look.CRASHED_STACKS):
            # The newest call is first.
            log, tail = str(folder / look.CRASHED_STACKS), tuple(crash.splitlines()[:TAIL_LINES])
        if end.cause is Cause.HANG and (stacks := self._read_stacks(end)):
            # A hung worker's output simply stops.
            log, calls, waits = stacks
            tail = calls[:TAIL_LINES]
            if waits:
                exception = f"{name_end(end)}: it waits for the others in a collective"
        if not folder.is_dir():
            # The log is on the cluster's claim; the node's console has a copy.
            log, tail = str(self.console), self._read_of_worker(end.rank)
        return self._with_log(replace(end, exception=exception), log, tail)

    def _read_stacks(self, end: WorkerEnd) -> tuple[str, tuple[str, ...], bool] | None:
        """From the look that found the hang: the file of the worker's stacks, the calls of its main
        thread, and whether it waits in a collective.
        """
        for past in reversed(look.read_looks(self._folder)):
            folder = look.look_dir(self._folder, past.id)
            stacks = look.read_stacks(folder, end.rank)
            if past.why == "hang" and past.attempt == end.attempt and stacks and stacks.threads:
                file = folder / look.STACKS.format(rank=end.rank)
                calls = look.render_thread(stacks.threads[0])
                # In a collective that another worker does not enter.
                waits = any("/torch/distributed/distributed_c10d.py" in call for call in calls)
                # DDP waits for the gradients in C++, which the stacks do not show.
                recorded = look.read_collectives(folder, end.rank)
                return str(file), calls, waits or look.has_open_collective(recorded)
        return None

    def _read_of_worker(self, rank: int) -> tuple[str, ...]:
        """A worker's last lines on its node's console."""
        data = read_tail(self.console, CONSOLE_BYTES)
        whole = data if data.endswith("\n") else f"{data}\n"
        pieces = split_console(whole.encode(), self._node.node_index)
        return _last_lines(b"".join(text for who, text in pieces if who == rank).decode())

    def _of_worker(
        self, rank: int, local_rank: int, exit_code: int, worker: WorkerLog | None
    ) -> WorkerEnd:
        exception, failed_at, log, tail = "", 0.0, "", tuple[str, ...]()
        if worker is not None:
            stdout, stderr = worker.streams
            folder = self._run.path / worker.folder
            exception = read_exception(folder / stderr, exit_code, may_have_raised=True)
            for name in (stderr, protocol.ERROR_FILE):
                with contextlib.suppress(OSError):
                    failed_at = (folder / name).stat().st_mtime
            log, tail = str(folder / stderr), _read_first(folder, (stderr, stdout))[1]
        worker_exit = WorkerExit(
            rank=rank,
            local_rank=local_rank,
            attempt=worker.attempt if worker else 0,
            exit_code=exit_code,
            failed_at=failed_at,
            # torchrun sends SIGTERM to the siblings of a failed worker. One that had already failed
            # by itself may still be exiting at that moment: only what it wrote tells.
            was_asked=exit_code == -signal.SIGTERM,
            had_failed=True,
        )
        end = judge_worker(worker_exit, exception)
        return self._with_log(replace(end, exception=exception or name_end(end)), log, tail)

    def _with_log(self, end: WorkerEnd, log: str, tail: tuple[str, ...]) -> WorkerEnd:
        return replace(end, node_index=self._node.node_index, log=log, log_tail=tail)


def _describe_end(end: WorkerEnd) -> str:
    if end.cause in (Cause.HANG, Cause.OUT_OF_MEMORY):
        return name_end(end) + (f" ({end.exception})" if end.exception else "")
    silent = ENDED_BY_AGENT if end.cause is Cause.TERMINATED else name_end(end)
    return end.exception or silent


def _read_first(folder: Path, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The first of the files that holds anything, and its last lines."""
    for name in names:
        if text := read_tail(folder / name, TAIL_BYTES):
            return str(folder / name), _last_lines(text)
    return str(folder / names[0]), ()


def _last_lines(text: str) -> tuple[str, ...]:
    # By "\n" alone: other separators are characters of a line.
    return tuple(map(show_line, text.rstrip("\n").split("\n")[-TAIL_LINES:])) if text else ()
