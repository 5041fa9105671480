"""Takes a look at this node's workers within a limit: their stacks, and what torch's flight
recorders remember. Takes their profiles: by the training itself, or by py-spy from outside.

No look waits for a worker longer than the look's limit, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.agent import processes
from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.attempts import Attempts, WorkerPlace
from launcher.agent.engine.monitoring.stacks import Faulthandler, PySpy, read_answered, record
from launcher.agent.streams import say
from launcher.agent.worker import recorder
from launcher.agent.worker.heartbeat import WorkerBeat
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.process_stat import is_stopped, read_stat, wait_channel
from launcher.contract.records import dump_record, parse_record, read_object
from launcher.contract.reports import look
from launcher.contract.reports.look import Look, LookRequest, RankLook, RankStacks, Why
from launcher.contract.waits import wait_until

LIMIT_S = 4.0
"""How long a look may take; whoever asked waits for 5 s."""
STOP_LIMIT_S = 1.2
"""How long a look may take at workers that are to be ended, after ``SHARE_S``."""
SHARE_S = 0.8
"""How long a look before a stop measures the processor time of workers."""
LOSS_LIMIT_S = 0.3
"""How long a look after a lost node may take: the restart waits for it."""
PY_SPY_LEAVES_S = 1.5
"""What py-spy leaves of the limit for faulthandler."""
NATIVE_LEAVES_S = 0.7
"""The same with the frames of C, for which py-spy takes longer."""
POLL_S = 0.02
NO_ANSWER = "no answer in time: its Python ends, or something in it holds Python's lock"
KEPT = 5
"""How many of the looks that somebody asked for are kept; older ones are removed."""


class Looker:
    """Looks at the workers of the present attempt, one look at a time."""

    def __init__(self, attempts: Attempts, clock: Clock) -> None:
        self._attempts, self._clock = attempts, clock
        self._request = attempts.node_dir / look.LOOK_REQUEST
        self._busy = threading.Lock()

    def answer(self) -> None:
        """Takes a look if somebody has asked for one. Cheap where nobody has."""
        if not os.path.exists(self._request):
            return
        with contextlib.suppress(OSError, ValueError):
            request = parse_record(LookRequest, read_object(self._request))
            self._request.unlink()
            if request.steps:
                # It takes seconds, in which this thread has to go on looking for hangs.
                threading.Thread(
                    target=take_profile, args=(self._attempts, request, self._clock), daemon=True
                ).start()
                return
            self._forget_old()
            self.take_look(request.why, id=request.id, native=request.native)
            return
        with contextlib.suppress(OSError):
            self._request.unlink()

    def take_look(
        self, why: Why, *, id: str = "", native: bool = False, stacks: bool = True
    ) -> Path | None:
        """Takes a look and returns its folder; None if it failed, or another look goes on.

        Blocks for ``LIMIT_S`` at most, before a stop for ``SHARE_S`` and ``STOP_LIMIT_S``, without
        stacks for ``LOSS_LIMIT_S``.
        """
        # Ended by itself: the other thread's look is enough, and this one does not wait for it.
        if not self._busy.acquire(blocking=False):
            return None
        try:
            return self._take_look(why, id or f"{why}-{self._clock.wall():.3f}", native, stacks)
        except OSError:
            # Such as a full disk: no look is worth a restart, or a hang that lasts longer.
            return None
        finally:
            self._busy.release()

    def _take_look(self, why: Why, id: str, native: bool, stacks: bool) -> Path:
        shares = self._cpu_shares() if why == "stop" else {}
        now, at = self._clock.monotonic(), self._clock.wall()
        limit_s = STOP_LIMIT_S if why == "stop" else LIMIT_S
        end = now + (limit_s if stacks else LOSS_LIMIT_S)
        folder = look.look_dir(self._attempts.node_dir, id)
        folder.mkdir(parents=True, exist_ok=True)
        attempt, beats = self._attempts.number, self._attempts.beats()
        workers = tuple(w for w in self._attempts.running() if w.rank in beats)
        described = [
            replace(
                _describe(w.rank, beats[w.rank], now),
                cpu_share=shares.get(w.rank, 0.0),
                wrote_s=_since_output(w.folder, at),
            )
            for w in workers
        ]
        refusals = {
            w.rank: _ask_recorder(w, worker_look.state)
            for w, worker_look in zip(workers, described, strict=True)
        }
        answers = {w.rank: recorder.answer(w.heartbeat) for w in workers if not refusals[w.rank]}
        exits = {worker.rank: worker.exit_file for worker in workers}

        def have_answered() -> bool:
            # A worker that has failed, as in a collective with a lost peer, ends without an answer.
            return all(p.exists() or exits[r].exists() for r, p in answers.items())

        stacks_of = self._take_stacks(workers, beats, native, have_answered, end) if stacks else {}
        self._wait(have_answered, end)
        no_collectives = dict(refusals)
        for rank, path in answers.items():
            no_collectives[rank] = _move_answer(path, folder / look.COLLECTIVES.format(rank=rank))
        ranks = tuple(
            replace(
                worker_look,
                no_stacks=_write_stacks(folder, stacks_of.get(worker_look.rank)),
                no_collectives=no_collectives[worker_look.rank],
            )
            for worker_look in described
        )
        for worker_look in ranks if why == "stop" else ():
            if worker_look.rank in stacks_of:
                say(look.render_printed_look(worker_look, stacks_of[worker_look.rank]))
        result = Look(id=id, at=at, why=why, attempt=attempt, native=native, ranks=ranks)
        write_atomically(folder / look.LOOK_FILE, dump_record(result))
        return folder

    def _cpu_shares(self) -> dict[int, float]:
        """The share of a core that each worker's processes use. Blocks for ``SHARE_S``."""
        pids = {rank: beat.pid for rank, beat in self._attempts.beats().items()}
        before = {rank: processes.cpu_seconds(processes.tree_of(pid)) for rank, pid in pids.items()}
        self._clock.sleep(SHARE_S)
        return {
            rank: (processes.cpu_seconds(processes.tree_of(pid)) - before[rank]) / SHARE_S
            for rank, pid in pids.items()
        }

    def _take_stacks(
        self,
        workers: tuple[WorkerPlace, ...],
        beats: dict[int, WorkerBeat],
        native: bool,
        have_answered: Callable[[], bool],
        end: float,
    ) -> dict[int, RankStacks]:
        pids = {worker.rank: beats[worker.rank].pid for worker in workers}
        spied = PySpy(pids, native=native)
        left_s = end - self._clock.monotonic()
        leaves_s = NATIVE_LEAVES_S if native else min(PY_SPY_LEAVES_S, left_s / 2)
        # Faulthandler may crash a worker that runs Python meanwhile. So it is asked only where the
        # worker's own thread has not answered: then no thread of it can run Python.
        self._wait(lambda: spied.are_done() and have_answered(), end - leaves_s)
        # Only py-spy can read a worker that a signal has stopped, so it may use the whole limit.
        stopped = [rank for rank, pid in pids.items() if is_stopped(pid)]
        taken = {rank: spied.read_stacks(rank) for rank in pids if rank not in stopped}
        for worker in workers:
            if worker.rank in taken and not taken[worker.rank].taken_by:
                file = recorder.answered_stacks(worker.heartbeat)
                taken[worker.rank] = read_answered(taken[worker.rank], file)
        files = {worker.rank: worker.stacks for worker in workers}
        handlers = {
            r: Faulthandler(stacks, files[r]) for r, stacks in taken.items() if not stacks.taken_by
        }
        self._wait(
            lambda: spied.are_done() and all(h.is_done() for h in handlers.values()),
            end,
        )
        taken |= {rank: spied.read_stacks(rank) for rank in stopped}
        handlers |= {r: Faulthandler(taken[r], files[r]) for r in stopped if not taken[r].taken_by}
        return taken | {rank: handler.read_stacks() for rank, handler in handlers.items()}

    def _wait(self, is_done: Callable[[], bool], end: float) -> None:
        while not is_done() and self._clock.monotonic() < end:
            self._clock.sleep(POLL_S)

    def _forget_old(self) -> None:
        node_dir = self._attempts.node_dir
        requested = [past for past in look.read_looks(node_dir) if past.why == "asked"]
        for past in requested[: 1 - KEPT]:
            shutil.rmtree(look.look_dir(node_dir, past.id), ignore_errors=True)


def _describe(rank: int, beat: WorkerBeat, now: float) -> RankLook:
    state = "".join(read_stat(beat.pid)[:1])
    return RankLook(
        rank=rank,
        pid=beat.pid,
        state=state,
        waits_in=wait_channel(beat.pid),
        steps=beat.steps,
        silent_s=max(0.0, now - beat.at),
    )


def _since_output(folder: Path, at: float) -> float:
    """The seconds from a worker's last output to ``at``; -1 if it has written nothing."""
    files = (folder / protocol.STDOUT_FILE, folder / protocol.STDERR_FILE)
    with contextlib.suppress(OSError):
        wrote_at = [stat.st_mtime for file in files if (stat := file.stat()).st_size]
        return max(0.0, at - max(wrote_at)) if wrote_at else -1.0
    return -1.0


def _ask_recorder(worker: WorkerPlace, state: str) -> str:
    """Why the worker cannot be asked; empty if it was asked."""
    recorder.answer(worker.heartbeat).unlink(missing_ok=True)
    recorder.answered_stacks(worker.heartbeat).unlink(missing_ok=True)
    if state == "T":
        return "a signal has stopped the process"
    try:
        # Fails at once where no thread waits.
        os.close(os.open(recorder.asking(worker.heartbeat), os.O_WRONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        return "the script has made no process group with torch.distributed"
    except OSError:
        return NO_ANSWER
    return ""


def _move_answer(answer: Path, to: Path) -> str:
    try:
        text = answer.read_text()
    except OSError:
        return NO_ANSWER
    answer.unlink(missing_ok=True)
    with contextlib.suppress(ValueError, AttributeError):
        if missing := json.loads(text).get("missing"):
            return str(missing)
    write_atomically(to, text)
    return ""


def _write_stacks(folder: Path, stacks: RankStacks | None) -> str:
    """Why there are no stacks; empty if they were written."""
    if stacks is None:
        return "not taken, so that the restart need not wait"
    if not stacks.taken_by:
        return stacks.missing
    write_atomically(folder / look.STACKS.format(rank=stacks.rank), dump_record(stacks))
    return ""


NO_TRAINING = "no training with fabric_train answers here yet (it does once its steps have begun)"


def take_profile(attempts: Attempts, request: LookRequest, clock: Clock) -> None:
    """Writes a look with each rank's profile, or why it has none; blocks for the request's time."""
    at = clock.wall()
    folder = look.look_dir(attempts.node_dir, request.id)
    pids = {rank: beat.pid for rank, beat in attempts.beats().items()}
    # Such as a full disk: no profile is worth a failure.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        answers = (attempts.node_dir / protocol.STOP_READY_FILE).exists()
        write_profiles = _ask_training if answers else _record
        missing = write_profiles(attempts.node_dir, folder, pids, request, clock)
        ranks = tuple(
            RankLook(rank=rank, pid=pid, no_stacks=missing.get(rank, ""))
            for rank, pid in pids.items()
        )
        result = Look(id=request.id, at=at, why="profile", attempt=attempts.number, ranks=ranks)
        write_atomically(folder / look.LOOK_FILE, dump_record(result))


def _ask_training(
    node_dir: Path, folder: Path, pids: Mapping[int, int], request: LookRequest, clock: Clock
) -> dict[int, str]:
    """Asks the training for traces; returns why ranks have none."""
    request_file = node_dir / protocol.PROFILE_REQUEST
    write_atomically(request_file, json.dumps({"id": request.id, "steps": request.steps}))
    traces = {rank: folder / protocol.TRACE.format(rank=rank) for rank in pids}
    wait_until(lambda: all(path.exists() for path in traces.values()), request.seconds, clock=clock)
    request_file.unlink(missing_ok=True)
    why = f"it has not made {request.steps} steps in {request.seconds:g} s"
    return {rank: why for rank, path in traces.items() if not path.exists()}


def _record(
    node_dir: Path, folder: Path, pids: Mapping[int, int], request: LookRequest, clock: Clock
) -> dict[int, str]:
    """Has py-spy record the ranks; returns why ranks have neither a trace nor a recording."""
    paths = {rank: folder / look.SPEEDSCOPE.format(rank=rank) for rank in pids}
    missing = record(pids, paths, request.seconds)
    return {rank: f"{NO_TRAINING}; {why}" for rank, why in missing.items()}
