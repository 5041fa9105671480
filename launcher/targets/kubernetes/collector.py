"""Brings the logs of a run's pods into the run folder, by one process at a time; which incarnation
of its node a pod is.

One process at a time writes the logs, whichever comes first; the others read the files.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from launcher.contract import protocol
from launcher.contract.causes import NodeState
from launcher.contract.clock import Clock
from launcher.follow.tails import raise_file_limit
from launcher.follow.target import NodeObservation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, make_folders
from launcher.targets.kubernetes.api import ApiError, Cluster
from launcher.targets.kubernetes.history import Incarnations, PodRecorder
from launcher.targets.kubernetes.logs import Fate, LogFollower, LogSource, containers_of
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pod_states import (
    OOM,
    PodView,
    describe_trouble,
    newest_of_each,
)
from launcher.targets.kubernetes.watch import PodWatch

LOG_LIMIT_S = 15.0
"""How long the last lines of ended pods may take."""
ENDINGS_LIMIT_S = 2.0
"""How long the watch may take to report how pods ended that are no longer listed."""


class PodCollector:
    """One run's pods on a cluster, and what the run folder has of them.

    Nothing is watched, and no log is read, before a method needs it. Every method may raise
    ``TargetError``.
    """

    def __init__(self, cluster: Cluster, plan: LaunchPlan, clock: Clock) -> None:
        self._cluster, self._plan, self._clock = cluster, plan, clock
        self._run = RunFolder(Path(plan.run_dir))
        self._incarnations = Incarnations(self._run)
        self._recorder = PodRecorder(self._run, self._incarnations, clock)
        masters = int(PodSettings.of(plan).has_master)
        self._watch = PodWatch(cluster, selector_of(plan.run_id), masters)
        self._followers: dict[LogSource, LogFollower] = {}
        self._lock: IO[bytes] | None = None

    @property
    def refusal(self) -> ApiError | None:
        """Why this user gets no logs; None while the server gives them."""
        refusals = (follower.refusal for follower in self._followers.values())
        return next((found for found in refusals if found), None)

    @property
    def watch(self) -> PodWatch:
        """The watch, which is open from the first call on."""
        self._watch.start()
        return self._watch

    def read(self) -> tuple[PodView, ...]:
        """The pods as they are now, oldest first."""
        return self._watch.refresh()

    def observe(self) -> list[NodeObservation]:
        """Each node by its newest pod."""
        pods = self.read()
        newest = newest_of_each(pods)
        for pod in pods:
            if pod.has_started and pod.node_index is not None:
                self.number_of(pod)
        return [self._observe(n.node_index, newest.get(n.node_index)) for n in self._plan.nodes]

    def _observe(self, index: int, pod: PodView | None) -> NodeObservation:
        if pod is None:
            return NodeObservation(node_index=index, incarnation=0, state=NodeState.MISSING)
        return NodeObservation(
            node_index=index,
            incarnation=self.number_of(pod),
            state=pod.state,
            exit_code=pod.exit_code,
            out_of_memory=pod.trouble is OOM,
            detail=describe_trouble(pod, self._cluster.kubectl_there) if pod.trouble else pod.waits,
        )

    def number_of(self, pod: PodView) -> int:
        """Which incarnation of its node a pod's container is."""
        assert pod.node_index is not None, "asked for nodes alone"
        return self._incarnations.number(pod.node_index, pod.uid, pod.restarts)

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with its nodes' present incarnations.

        Its checkpoint folder is the claim as the job file names it; empty without a claim.
        """
        claim = PodSettings.of(plan).checkpoint
        folder = "" if claim is None else f"pvc/{claim.name}/{claim.folder}"
        newest = self._incarnations.newest
        nodes = tuple(replace(node, incarnation=newest(node.node_index)) for node in plan.nodes)
        return replace(plan, nodes=nodes, checkpoint_dir=folder)

    # -- logs ------------------------------------------------------------------------------------

    def writes_output(self) -> bool:
        """Whether this process is the one that writes the pods' output, from now on."""
        if self._lock is None:
            make_folders((str(self._run.path),))
            lock = (self._run.path / "output.lock").open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
            # A connection and a file for each container.
            raise_file_limit()
        return True

    def follow_logs(self) -> None:
        """Starts to follow every container that was started since the last call, and saves what
        those that ended have left. Does nothing while another process writes the output."""
        if self.writes_output():
            pods = self.watch.pods()
            self._save()
            self._start(pods, once=False)

    def read_logs(self) -> None:
        """Brings what all containers have written by now, within ``LOG_LIMIT_S``, and outcomes.

        Raises ``ApiError`` if this user may not read logs.
        """
        pods, refusal = self.watch.refresh(), self.refusal
        if self.writes_output():
            self._save()
            if not self._followers:
                self._start(pods, once=True)
                self._finish(self._followers.values())
                refusal = self.refusal
                self._followers.clear()
                if self._lock is not None:
                    # Lets other processes write.
                    self._lock.close()
                    self._lock = None
        if refusal is not None:
            raise refusal

    def collect(self) -> None:
        """Brings the logs' last lines, within ``LOG_LIMIT_S``, and outcomes."""
        with self._cluster.answers_within(LOG_LIMIT_S):
            self.watch.refresh()
        self.watch.wait_endings(ENDINGS_LIMIT_S)
        self.follow_logs()
        self._finish_ended()

    def close(self) -> None:
        """Brings the last output of pods that have ended, and stops watching."""
        self._finish_ended()
        self._watch.wait_endings(ENDINGS_LIMIT_S)
        if self.writes_output():
            self._save()
        self._watch.stop()

    def find_losses(self) -> tuple[str, ...]:
        """A line for each container whose log the cluster no longer has."""
        lost = ((s.pod, f.loss) for s, f in self._followers.items() if f.loss)
        return tuple(f"the rest of the log of {pod} is lost: {why}" for pod, why in lost)

    def _save(self) -> None:
        self._recorder.save(self._watch.seen(), self._watch.pods())

    def _finish_ended(self) -> None:
        self._finish([f for s, f in self._followers.items() if self._fate(s).is_over])

    def _finish(self, followers: Iterable[LogFollower]) -> None:
        deadline = self._clock.monotonic() + LOG_LIMIT_S
        for follower in followers:
            follower.finish(max(0.1, deadline - self._clock.monotonic()))

    def _start(self, pods: Iterable[PodView], *, once: bool) -> None:
        """Reads the logs of containers that are not read yet; ``_save`` has made their folders."""
        for pod in pods:
            for source, _ in containers_of(pod):
                if pod.node_index is not None and source not in self._followers:
                    self._followers[source] = self._follow(source, pod.node_index, once)

    def _follow(self, source: LogSource, index: int, once: bool) -> LogFollower:
        incarnation = self._incarnations.number(index, source.uid, source.restarts)
        write = ConsoleWriter(self._run.console(index, incarnation))

        def take(line: bytes) -> None:
            write(line)
            text = line.decode(errors="replace").rstrip("\n")
            self._recorder.hear(source, index, incarnation, follower.at, text)

        fate = partial(self._fate, source)
        follower = LogFollower(self._cluster, source, fate, take, once=once)
        follower.start()
        return follower

    def _fate(self, source: LogSource) -> Fate:
        pod = self._watch.find(source.uid)
        later = 0 if pod is None else pod.restarts - source.restarts
        ended = pod is None or later > 0 or pod.state is NodeState.EXITED
        return Fate(is_over=ended, was_restarted=later == 1, is_forgotten=later > 1)


def selector_of(run_id: str) -> str:
    """What selects a run's objects."""
    return f"{protocol.LABEL_RUN_ID}={run_id}"


class ConsoleWriter:
    """Appends the lines of a log to a file that may hold a part of it from an earlier reader.

    Lines that the file has are left out, even if the cluster has thrown away a log's beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None
        self._late: list[bytes] = []
        with contextlib.suppress(OSError):
            self._held = path.open("rb")

    def __call__(self, line: bytes) -> None:
        """Takes the next whole line of the log, from its beginning on."""
        if self._held is not None:
            # The search goes on after the line that was found last.
            if line in self._held:
                return
            self._held.close()
            self._held = None
        self._late.append(line)
        # If the file cannot be opened now, the next line tries again.
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            lines, self._late = self._late, []
            file.writelines(lines)
