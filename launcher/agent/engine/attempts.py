"""The starts of this node's workers: folders, heartbeats, and how each worker ended."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.agent import disk, signals
from launcher.agent.endings import judge_worker
from launcher.agent.worker.heartbeat import WorkerBeat, create_heartbeat, hung_mark, read_heartbeat
from launcher.agent.worker.start import stacks_file
from launcher.agent.worker_exit import (
    judge_end,
    read_end,
    read_failed_at,
    read_oom_kills,
)
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, WorkerEnd, WorkerExit, sort_ends


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """Where one worker of the present attempt writes."""

    rank: int
    local_rank: int
    folder: Path
    heartbeat: Path

    @property
    def asked_file(self) -> Path:
        """Made by the guard once the agent has asked this worker to end."""
        return self.heartbeat.with_name(f"asked-{self.heartbeat.name}")

    @property
    def stacks(self) -> Path:
        """Where its faulthandler writes."""
        return stacks_file(self.heartbeat)

    @property
    def exit_file(self) -> Path:
        return self.folder / protocol.EXIT_FILE


class Attempts:
    """The attempts of one incarnation; what an attempt has written is never removed here.

    The agent's main thread begins and ends them. Other threads only read ``workers``, which is
    replaced as a whole; the healer's write into ``break_reasons``.
    """

    def __init__(self, node_dir: Path, run_dir: Path, scratch: Path) -> None:
        self.node_dir = node_dir
        self.workers: tuple[WorkerPlace, ...] = ()
        self.number = _last_number(node_dir)
        self.count = 0
        self.worker_ends: tuple[WorkerEnd, ...] = ()
        """The workers' ends by which the present attempt was judged, causes first; empty before."""
        self.ended_well: tuple[WorkerEnd, ...] = ()
        """Workers of the present attempt with exit code 0, at the last ``collect_ends``."""
        self._run_dir, self._scratch = run_dir, scratch
        self.break_reasons: dict[int, str] = {}
        """Why a worker's process group broke, by local rank, while it waits for another one."""
        self._oom_kills = 0

    def begin(self, ranks: Mapping[int, int]) -> tuple[WorkerPlace, ...]:
        """Begins a new attempt of the workers ``{local rank: rank}``, and makes its folders.

        Raises OSError.
        """
        self.forget_speaker()
        self.number += 1
        self.count += 1
        self._oom_kills = read_oom_kills()
        before, self.worker_ends = self.workers, ()
        workers = tuple(self._make_place(rank, local_rank) for local_rank, rank in ranks.items())
        self.workers, self.break_reasons = workers, {}
        for worker in set(before) - set(workers):
            # The supervisor passes signals on to the processes that heartbeats name.
            worker.heartbeat.unlink(missing_ok=True)
        return workers

    def forget_speaker(self) -> None:
        """Notes that the workers that would answer a stop request have ended."""
        (self.node_dir / protocol.STOP_READY_FILE).unlink(missing_ok=True)

    def collect_ends(self, *, regroups: bool = False) -> tuple[WorkerEnd, ...]:
        """How the workers that failed in the present attempt ended, causes first.

        ``regroups``: the agent ended them itself, and some may not have begun yet.
        """
        beats = self.beats()
        end_of = {worker: self._end_of(worker, beats.get(worker.rank)) for worker in self.workers}
        known = sort_ends(filter(None, end_of.values()))
        self.ended_well = tuple(end for end in known if end.exit_code == 0)
        failed = tuple(end for end in known if end.exit_code != 0)
        if regroups or any(end.cause is not Cause.TERMINATED for end in failed):
            return failed
        return (*(self._never_began(worker) for worker in end_of if not end_of[worker]), *failed)

    def describe_disk(self, end: Ending, first: WorkerEnd | None) -> str:
        """The detail of a node's end by a full disk, which names the disk and its largest files."""
        others = disk.common_folders(os.environ.get(protocol.CHECKPOINT_DIR))
        summary = disk.describe(end.summarize(first), self._run_dir, (self._scratch, *others))
        return f"{summary}; {end.detail}" if end.detail else summary

    def beats(self) -> dict[int, WorkerBeat]:
        """The last beat of each worker, by rank."""
        beats = {worker.rank: read_heartbeat(worker.heartbeat) for worker in self.workers}
        return {rank: beat for rank, beat in beats.items() if beat is not None}

    def running(self) -> tuple[WorkerPlace, ...]:
        """The workers that have not ended."""
        # os.path, because a storage that fails for a moment must not end the threads that look.
        return tuple(w for w in self.workers if not os.path.exists(w.exit_file))

    def have_succeeded(self) -> bool:
        """Whether all workers ended well, and none of them because it was asked to end."""
        ends = [read_end(worker.exit_file, self._run_dir) for worker in self.workers]
        return bool(ends) and all(end and end.cause is Cause.COMPLETED for end in ends)

    def were_signalled(self) -> bool:
        """Whether a signal that was not the agent's ended a worker of the present attempt."""
        codes = {-signum for signum in signals.ENDING} | {128 + signum for signum in signals.ENDING}
        return any(
            end.cause is not Cause.TERMINATED and end.exit_code in codes
            for end in self.collect_ends()
        )

    def steps(self) -> int:
        """Optimizer steps in the present attempt by the worker that made the most."""
        return max((beat.steps for beat in self.beats().values()), default=0)

    def _end_of(self, worker: WorkerPlace, beat: WorkerBeat | None) -> WorkerEnd | None:
        """How a worker ended; None if it left neither a record nor a beat."""
        if (end := read_end(worker.exit_file, self._run_dir)) is None:
            return self._killed(worker, beat.steps) if beat else None
        if end.cause is Cause.TERMINATED and not end.exception:
            # A worker that waited for another group has written no error: it would have gone on.
            return replace(end, exception=self.break_reasons.get(end.local_rank, ""))
        return end

    def _killed(self, worker: WorkerPlace, steps: int) -> WorkerEnd:
        """The end of a worker whose guard died too: by SIGKILL, as it blocks all other signals."""
        record = replace(
            self._exit_record(worker, -signal.SIGKILL),
            # Asked to end, and killed because the kernel kept it from ending for too long.
            was_asked=worker.asked_file.exists(),
            hung=hung_mark(worker.heartbeat).exists(),
            oom_killed=read_oom_kills() > self._oom_kills,
            has_room=disk.has_room(worker.folder),
            steps=steps,
        )
        end = judge_end(worker.folder, record)
        why = "it was killed together with its guard process"
        if end.cause is Cause.DISK_FULL:
            why = f"its end could not be written down: {os.strerror(errno.ENOSPC)}"
        log = os.path.relpath(worker.folder, self._run_dir)
        return replace(end, exception=end.exception or why, log=log)

    def _never_began(self, worker: WorkerPlace) -> WorkerEnd:
        """The end of a worker without any record: the process that starts workers has failed."""
        end = judge_worker(self._exit_record(worker, 1), "it ended before its script began")
        return replace(end, log=os.path.relpath(worker.folder, self._run_dir))

    def _exit_record(self, worker: WorkerPlace, exit_code: int) -> WorkerExit:
        return WorkerExit(
            attempt=self.number,
            rank=worker.rank,
            local_rank=worker.local_rank,
            exit_code=exit_code,
            failed_at=read_failed_at(worker.folder, otherwise=time.time()),
            was_asked=False,
        )

    def _make_place(self, rank: int, local_rank: int) -> WorkerPlace:
        attempt = protocol.ATTEMPT_FOLDER.format(attempt=self.number)
        folder = self.node_dir / attempt / protocol.RANK_FOLDER.format(rank=rank)
        folder.mkdir(parents=True, exist_ok=True)
        # Readers expect both files, even of a worker that writes nothing.
        for name in (protocol.STDOUT_FILE, protocol.STDERR_FILE):
            (folder / name).touch()
        heartbeat = self._scratch / f"heartbeat-{self.number}-{rank}"
        create_heartbeat(heartbeat)
        return WorkerPlace(rank=rank, local_rank=local_rank, folder=folder, heartbeat=heartbeat)


def _last_number(node_dir: Path) -> int:
    """The highest attempt that an earlier start of this incarnation's agent made; -1 for none."""
    pattern = re.compile(protocol.ATTEMPT_FOLDER.format(attempt=r"(\d+)"))
    matches = (pattern.fullmatch(path.name) for path in node_dir.glob("attempt-*"))
    return max((int(match[1]) for match in matches if match), default=-1)
