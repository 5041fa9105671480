"""Brings the logs of a run's pods into the run folder, and when they were made, placed, started and
lost; which incarnation of its node a pod is.

One process at a time writes the logs, whichever comes first; the others read the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO

from launcher.contract import protocol
from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import Clock
from launcher.contract.errors import DiskFullError, name_exit_code
from launcher.contract.hold import READY_SAYS
from launcher.contract.reports.look import STANDS
from launcher.follow.tails import raise_file_limit
from launcher.follow.target import NodeObservation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.runs.ledger import read_moments, tell_moment
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.api.refusals import ApiError
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pods.logs import (
    ConsoleWriter,
    Fate,
    LogFollower,
    LogSource,
    containers_of,
)
from launcher.targets.kubernetes.pods.states import (
    OOM,
    ContainerEnd,
    PodView,
    describe_trouble,
    newest_of_each,
    seconds_of,
)
from launcher.targets.kubernetes.pods.watch import PodWatch

LOG_LIMIT_S = 15.0
"""How long the last lines of ended pods may take."""
ENDINGS_LIMIT_S = 2.0
"""How long the watch may take to report how pods ended that are no longer listed."""
POD_FILE = "pod.json"
"""In a node's folder: which container's output lies there."""
AGENT_SAYS = "[agent] "


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
        return next(filter(None, refusals), None)

    @property
    def watch(self) -> PodWatch:
        """The watch, which is open from the first call on."""
        self._watch.start()
        return self._watch

    def read_pods(self) -> tuple[PodView, ...]:
        """The pods as they are now, oldest first."""
        return self._watch.refresh()

    def observe(self) -> list[NodeObservation]:
        """Each node by its newest pod."""
        pods = self.read_pods()
        newest = newest_of_each(pods)
        for pod in pods:
            if pod.has_started and pod.node_index is not None:
                self._incarnations.number(pod.node_index, pod)
        return [self._observe(n.node_index, newest.get(n.node_index)) for n in self._plan.nodes]

    def _observe(self, index: int, pod: PodView | None) -> NodeObservation:
        if pod is None:
            return NodeObservation(node_index=index, incarnation=0, state=NodeState.MISSING)
        return NodeObservation(
            node_index=index,
            incarnation=self._incarnations.number(index, pod),
            state=pod.state,
            exit_code=pod.exit_code,
            out_of_memory=pod.trouble is OOM,
            detail=describe_trouble(pod, self._cluster.kubectl_there) if pod.trouble else pod.waits,
        )

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
        self._recorder.save(self._watch.all_pods(), self._watch.pods())

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
        incarnation = self._incarnations.number(index, source)
        append = ConsoleWriter(self._run.console(index, incarnation))

        def write_line(line: bytes) -> None:
            append(line)
            text = line.decode(errors="replace").rstrip("\n")
            self._recorder.record_line(source, index, incarnation, follower.at, text)

        fate = partial(self._fate, source)
        follower = LogFollower(self._cluster, source, fate, write_line, once=once)
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


# -- what is kept of pods: controllers delete them, and with them what their statuses say ----------


class Incarnations:
    """Numbers the containers of each node, also those that earlier launchers have seen."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._containers: dict[int, list[tuple[str, int]]] = {}
        """Uid of the pod and restarts, by node."""

    def _of(self, index: int) -> list[tuple[str, int]]:
        """The containers of a node in their order: those with output in the run folder first."""
        if index not in self._containers:
            known = self._containers[index] = []
            while (path := self._run.node_dir(index, len(known)) / POD_FILE).is_file():
                record = json.loads(path.read_text())
                known.append((record["uid"], record["restarts"]))
        return self._containers[index]

    def number(self, index: int, container: PodView | LogSource) -> int:
        """How many containers the node had before this one; of a pod, its present one."""
        known, key = self._of(index), (container.uid, container.restarts)
        if key not in known:
            known.append(key)
        return known.index(key)

    def upcoming(self, index: int) -> int:
        """The number that the next container gets."""
        return len(self._of(index))

    def newest(self, index: int) -> int:
        """The number of the last container seen."""
        return max(len(self._containers.get(index, ())) - 1, 0)


class PodRecorder:
    """Saves what is new about a run's pods, also after another process did."""

    def __init__(self, run: RunFolder, incarnations: Incarnations, clock: Clock) -> None:
        self._run, self._incarnations, self._clock = run, incarnations, clock
        self._done: set[str] = set()
        """Uids of pods that are gone and fully recorded."""
        self._recorded = {str(event.values.get("key")) for event in read_moments(run)}
        self._lock = threading.Lock()

    def save(self, pods: Iterable[PodView], there: Iterable[PodView]) -> None:
        """``pods`` are all of the run's, oldest first; ``there`` are the ones not gone."""
        left = {pod.uid for pod in there}
        for pod in pods:
            index = pod.node_index
            if index is None or pod.uid in self._done:
                continue
            first = number = self._incarnations.upcoming(index)
            for n, (source, ending) in enumerate(containers_of(pod)):
                number = self._incarnations.number(index, source)
                first = number if n == 0 else first
                self._save_container(source, self._run.node_dir(index, number), ending)
                self._record(_container_moments(pod, source, ending), index, number)
            self._record(_moments(pod, self._clock.wall()), index, first)
            if pod.uid not in left:
                gone = (f"{pod.uid}/gone", self._clock.wall(), f"pod {pod.name} is gone")
                self._record([gone], index, number)
                if pod.state is NodeState.EXITED:
                    self._done.add(pod.uid)

    def record_line(
        self, source: LogSource, index: int, number: int, stamp: str, text: str
    ) -> None:
        """Records a line of a container's log if the agent says it: nothing else tells of that."""
        line = text.removeprefix(AGENT_SAYS)
        if line != text and not line.startswith(("health: ", STANDS)):
            key = f"{source.uid}/{source.restarts}/{stamp}/{text}"
            self._record([(key, seconds_of(stamp), f"agent: {line}")], index, number)
            if line.startswith(READY_SAYS):
                path = self._run.node_dir(index, number) / protocol.HOLD_READY
                with contextlib.suppress(OSError, DiskFullError):
                    write_atomically(path, line.removeprefix(READY_SAYS))

    def _save_container(self, source: LogSource, folder: Path, ending: ContainerEnd | None) -> None:
        """Saves which container's output lies in a node's folder, and its outcome there."""
        # A full disk here must not stop following a run that goes on there.
        with contextlib.suppress(OSError, DiskFullError):
            if not (folder / POD_FILE).exists():
                make_folders((str(folder),))
                write_atomically(folder / POD_FILE, json.dumps(asdict(source)))
            outcome = folder / protocol.OUTCOME_FILE
            if ending and not outcome.exists() and ending.outcome:
                write_atomically(outcome, ending.message)

    def _record(self, moments: Iterable[tuple[str, float, str]], index: int, number: int) -> None:
        with self._lock:
            for key, at, text in moments:
                if key in self._recorded:
                    continue
                self._recorded.add(key)
                tell_moment(self._run, index, number, at=at, text=text, key=key)


def _moments(pod: PodView, now: float) -> Iterator[tuple[str, float, str]]:
    """What happened to a pod and when: a key, seconds since the epoch, words."""
    if pod.trouble and pod.state is NodeState.PENDING and pod.cause is not Cause.NO_ROOM:
        # Kubernetes gives it no time. That there is no room is told by the conditions below.
        text = f"pod {pod.name} waits: {pod.trouble.word}: {pod.message}"
        yield f"{pod.uid}/{pod.restarts}/{pod.trouble.word}", now, text
    yield f"{pod.uid}/made", seconds_of(pod.created), f"pod {pod.name} made"
    for stamp, words in pod.conditions:
        yield f"{pod.uid}/{words}", seconds_of(stamp), f"pod {pod.name} {words}"
    if pod.ending is not None and not pod.has_started:
        stamp, word = pod.ending.finished, pod.ending.word
        text = f"pod {pod.name} could not be prepared: {word}"
        yield f"{pod.uid}/{stamp}/unprepared", seconds_of(stamp or pod.created), text


def _container_moments(
    pod: PodView, source: LogSource, ending: ContainerEnd | None
) -> Iterator[tuple[str, float, str]]:
    """As ``_moments``, for one container of the pod."""
    key = f"{pod.uid}/{source.restarts}"
    present = pod.started if source.restarts == pod.restarts else ""
    started = ending.started if ending else present
    if started:
        yield f"{key}/started", seconds_of(started), f"container of {pod.name} started"
    if ending is not None:
        # These two add nothing to the exit code.
        word = "" if ending.word in ("Error", "Completed") else ending.word
        if outcome := ending.outcome:
            word = outcome.cause.value
            if first := outcome.first:
                words = f"rank {first.rank} ended: {first.exception or first.cause}"
                yield f"{key}/first", first.failed_at, words
        why = f" ({word})" if word else ""
        at = seconds_of(ending.finished) or seconds_of(pod.created)
        code = name_exit_code(ending.exit_code)
        yield f"{key}/ended", at, f"container of {pod.name} ended: exit code {code}{why}"
