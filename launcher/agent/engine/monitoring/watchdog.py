"""The step watchdog: learns how long a step may take, finds workers that hang, and has them
restarted.

Judges by heartbeats alone, so it works for any script that steps a torch optimizer; one that
never does is never judged. The limit is learned from how long workers have been silent so far.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launcher.agent import processes
from launcher.agent.engine.attempts import Attempts, WorkerPlace
from launcher.agent.engine.monitoring.look import Looker
from launcher.agent.ledger import AgentLedger
from launcher.agent.streams import say
from launcher.agent.worker.heartbeat import WorkerBeat, hung_mark
from launcher.contract.clock import Clock
from launcher.contract.node_plan import AgentSettings
from launcher.contract.waits import LOOK_S

BUSY_SHARE = 0.05
"""Of one processor. A worker whose processes use more is computing and does not hang."""
PROOF_S = 1.0
"""A hang is decided by two readings that are at least this far apart and have the same beats."""
STOOD_STILL_S = 5.0
"""If two polls are further apart than this, the process stood still, and its workers with it."""


@dataclass(frozen=True, kw_only=True)
class Silence:
    """One worker without a beat for ``silent_s`` seconds, which is longer than ``limit_s``."""

    rank: int
    silent_s: float
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was read at one instant while all workers were silent; ``at`` is monotonic."""

    at: float
    beats: Mapping[int, WorkerBeat]
    cpu_s: float

    def share_since(self, first: Reading | None) -> float | None:
        """The share of a core that a worker has used since an earlier reading, on average. Pure.

        None if a worker has beaten since, or if the readings are less than ``PROOF_S`` apart.
        """
        if first is None or first.beats != self.beats or self.at - first.at < PROOF_S:
            return None
        return (self.cpu_s - first.cpu_s) / (self.at - first.at) / len(self.beats)


class SilenceBook:
    """Learns how long workers are silent, and names those that are so for too long. Pure.

    What it learned survives restarts; a worker's first beat of an attempt starts its clock.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self.most_s = settings.hang_max_s
        """The longest that a worker may ever be silent."""
        self._longest_s = 0.0
        self._last: dict[int, WorkerBeat] = {}
        self._awake_since = float("-inf")

    def new_attempt(self) -> None:
        """Other workers beat from now on."""
        self._last.clear()

    def wake(self, now: float) -> None:
        """The whole node stood still until now, as when it is suspended: nobody could beat."""
        self._awake_since = now

    @property
    def limit_s(self) -> float:
        """The longest that a worker which uses no processor may be silent now."""
        learned = self._longest_s * self._settings.hang_factor
        return min(max(learned, self._settings.hang_min_s), self._settings.hang_max_s)

    def find_silent(self, beats: Mapping[int, WorkerBeat], now: float) -> tuple[Silence, ...]:
        """The workers that are silent for longer than the limit; ``now`` is by the beats' clock."""
        if self._settings.hang_min_s <= 0:
            return ()
        silent = []
        for rank, beat in beats.items():
            self._learn(rank, beat)
            silent_s = now - max(beat.at, self._awake_since)
            # Before the first step nothing is known yet: data may be loading, a compiler running.
            if beat.steps and silent_s > self.limit_s:
                silent.append(Silence(rank=rank, silent_s=silent_s, limit_s=self.limit_s))
        return tuple(silent)

    def _learn(self, rank: int, beat: WorkerBeat) -> None:
        last = self._last.get(rank)
        self._last[rank] = beat
        if last is not None and last.pid == beat.pid and last.steps and beat.at > last.at:
            gap_s = beat.at - max(last.at, self._awake_since)
            self._longest_s = max(self._longest_s, gap_s)


def decide_hung(
    silent: tuple[Silence, ...], workers: int, busy: bool, max_s: float
) -> Silence | None:
    """The worker that has been silent longest, if the group hangs.

    All of the node's workers must be silent. While one of them computes, the others may wait for
    it, so only the upper bound counts.
    """
    if not silent or len(silent) < workers:
        return None
    longest = max(silent, key=lambda silence: silence.silent_s)
    if busy and longest.silent_s < max_s:
        return None
    return longest


class Watchdog:
    """Watches the present attempt from a thread of the agent."""

    def __init__(
        self,
        attempts: Attempts,
        settings: AgentSettings,
        ledger: AgentLedger,
        looker: Looker,
        clock: Clock,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """``waits``: whether the workers wait for other nodes, and so do not hang."""
        self._waits = waits
        self.book = SilenceBook(settings)
        self._attempts, self._ledger, self._clock = attempts, ledger, clock
        self._looker = looker
        self._attempt = -1
        self._ended_attempt = -1
        self._has_stepped = False
        self._first: Reading | None = None
        self._looked_at = clock.monotonic()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begins to watch. Even where it never judges, it notes the first step."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after its present look."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self.poll()
            self._looker.answer()

    def poll(self) -> None:
        """Reads the beats of the present attempt once; kills its workers if they hang."""
        now = self._clock.monotonic()
        if now - self._looked_at > STOOD_STILL_S or self._waits():
            self.book.wake(now)
            self._first = None
        self._looked_at = now
        if self._attempts.number != self._attempt:
            self._attempt, self._has_stepped, self._first = self._attempts.number, False, None
            self.book.new_attempt()
        beats = self._attempts.beats()
        if self._ended_attempt == self._attempt:
            # Its heartbeats do not change until the next attempt begins.
            return
        if not self._has_stepped and any(beat.steps for beat in beats.values()):
            self._has_stepped = True
            self._ledger.write("first-step", attempt=self._attempt)
        # A worker that has ended is silent, but does not hang.
        workers = self._attempts.running()
        beats = {worker.rank: beats[worker.rank] for worker in workers if worker.rank in beats}
        silent = self.book.find_silent(beats, self._clock.monotonic())
        if not workers or len(silent) < len(workers):
            self._first = None
            return
        first, second = self._first, self._take_reading(beats)
        share = second.share_since(first)
        if first is None or first.beats != beats or share is not None:
            self._first = second
        if first is None or share is None:
            return
        if hung := decide_hung(silent, len(workers), share > BUSY_SHARE, self.book.most_s):
            # Before the hang is reported: whoever reads that could end the workers.
            stacks_in = self._looker.take_look("hang") or "no file: they could not be written"
            self._report_hang(hung, (first.at, second.at), share, beats[hung.rank], stacks_in)
            self._end(beats, workers)

    def _take_reading(self, beats: Mapping[int, WorkerBeat]) -> Reading:
        trees = [processes.tree_of(beat.pid) for beat in beats.values()]
        cpu_s = sum(processes.cpu_seconds(tree) for tree in trees)
        return Reading(at=self._clock.monotonic(), beats=beats, cpu_s=cpu_s)

    def _end(self, beats: Mapping[int, WorkerBeat], workers: tuple[WorkerPlace, ...]) -> None:
        for worker in workers:
            with contextlib.suppress(OSError):
                hung_mark(worker.heartbeat).touch()
        for beat in beats.values():
            processes.send(beat.pid, signal.SIGKILL)
        self._ended_attempt = self._attempt

    def _report_hang(
        self,
        hung: Silence,
        read_at: tuple[float, float],
        cpu_share: float,
        beat: WorkerBeat,
        stacks_in: object,
    ) -> None:
        limit_s = self.book.most_s if cpu_share > BUSY_SHARE else hung.limit_s
        first, second = read_at
        say(
            f"rank {hung.rank} has hung for {hung.silent_s:.1f} s "
            f"(limit {limit_s:.1f} s): beat {beat.number}, at step {beat.steps}, was its last in "
            f"two reads {second - first:.1f} s apart, between which each worker used "
            f"{cpu_share:.1%} of a core; stacks are in {stacks_in}"
        )
        self._ledger.write(
            "hang",
            attempt=self._attempt,
            rank=hung.rank,
            silent_s=hung.silent_s,
            limit_s=limit_s,
            steps=beat.steps,
            beat=beat.number,
            beat_at=beat.at,
            read_at=read_at,
            cpu_share=cpu_share,
        )
