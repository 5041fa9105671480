"""Plays a job on a Docker engine: starts its pods, follows them, restarts them, cleans up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from launcher.clock import Clock
from launcher.errors import name_exit_code
from launcher.lines import Block, BlockSplitter
from launcher.play import Next, Play, PlayOutcome, PodState, decide_next, decide_outcome
from launcher.state import NodeState
from launcher.tails import Stream
from launcher.targets.docker_engine import Engine, Held, at_once
from launcher.targets.docker_play import Folders, group_of

POLL_S = 0.2
LAST_OUTPUT_S = 5.0
"""How long the engine may take to hand out what an ended container has printed."""
MAX_PAUSE_S = 10.0
"""Between restarts of one pod; a kubelet's pauses grow to five minutes."""


class Stage(Protocol):
    """Where a play is seen."""

    def note(self, text: str) -> None:
        """The player's own word."""
        ...

    def show(self, pod: str, stream: Stream, block: Block) -> None:
        """What a pod has written."""
        ...


@dataclass(kw_only=True)
class _Pod:
    """What changes about a pod while it is played."""

    state: PodState
    incarnation: int = 0
    pending_next: Next | None = None
    start_at: float = float("-inf")
    restarts: int = 0
    """By the kubelet and by the operator: the pauses grow with them."""


class Player:
    """One play. ``play`` blocks until the job has ended; ``close`` leaves nothing behind."""

    def __init__(
        self, play: Play, play_id: str, engine: Engine, clock: Clock, claims: Mapping[str, Path]
    ) -> None:
        self._play = play
        self._id = play_id
        self._engine = engine
        self._clock = clock
        self._folders = Folders(claims)
        self._pods = [_Pod(state=PodState()) for _ in play.pods]
        self._output: queue.SimpleQueue[tuple[str, Stream, Block]] = queue.SimpleQueue()
        self._followers: dict[int, list[threading.Thread]] = {}

    def play(self, stage: Stage) -> PlayOutcome:
        """Follows the job to its end by the operator's rules. Raises ``TargetError``."""
        started_at = self._clock.monotonic()
        self._start(list(range(len(self._pods))))
        while True:
            self._advance(stage)
            self._show(stage)
            states = tuple(pod.state for pod in self._pods)
            outcome = decide_outcome(self._play, states, self._clock.monotonic() - started_at)
            if outcome is not None:
                self._end(stage)
                return outcome
            self._clock.sleep(POLL_S)

    def close(self, stage: Stage) -> None:
        """Removes containers, network and folders, by force. Idempotent."""
        self._engine.sweep(self._engine.list_containers(self._id))
        self._join(list(self._followers))
        self._show(stage)
        self._engine.sweep_networks(self._id)
        self._folders.remove(self._engine, self._play.pods[0].image)

    # -- starting and restarting ---------------------------------------------------------------

    def _start(self, indices: list[int]) -> None:
        incarnations = {index: self._pods[index].incarnation for index in indices}
        for index in indices:
            self._folders.make(self._play.pods[index])
        group = group_of(self._play, self._id, self._folders, incarnations)
        ids = self._engine.create(group, {})
        for index, id in zip(indices, ids, strict=True):
            self._follow(index, id)

    def _advance(self, stage: Stage) -> None:
        """Looks at every pod once, and acts on what it finds."""
        held = {c.node_index: c for c in self._engine.list_containers(self._id)}
        for index, pod in enumerate(self._pods):
            if pod.state.ended is not None:
                continue
            if pod.pending_next is not None:
                self._restart_when_due(index, pod, stage)
            elif (container := held.get(index)) is None:
                self._gone(index, pod, stage)
            elif container.state is NodeState.EXITED:
                self._ended(index, pod, container, stage)

    def _ended(self, index: int, pod: _Pod, container: Held, stage: Stage) -> None:
        ending = self._engine.read_ending(container)
        if ending is None:
            return
        self._join([index])
        self._show(stage)
        named, policy = self._play.pods[index].name, self._play.pods[index].restart_policy
        following = decide_next(policy, ending.exit_code)
        killed = "; out of memory" if ending.out_of_memory else ""
        stage.note(f"{named} ended with {name_exit_code(ending.exit_code)}{killed}")
        if following in (Next.SUCCEEDED, Next.FAILED):
            pod.state = replace(pod.state, ended=following, exit_code=ending.exit_code)
            return
        if following is Next.RESTART:
            pod.state = replace(pod.state, restarts=pod.state.restarts + 1)
        self._engine.sweep([container])
        self._plan_restart(index, pod, following)

    def _gone(self, index: int, pod: _Pod, stage: Stage) -> None:
        """A container that somebody removed: the operator makes a new pod."""
        self._join([index])
        stage.note(f"{self._play.pods[index].name} is gone")
        self._plan_restart(index, pod, Next.RECREATE)

    def _plan_restart(self, index: int, pod: _Pod, following: Next) -> None:
        pause_s = 0.0 if pod.restarts == 0 else min(2.0 ** (pod.restarts - 1), MAX_PAUSE_S)
        pod.restarts += 1
        pod.pending_next = following
        pod.start_at = self._clock.monotonic() + pause_s

    def _restart_when_due(self, index: int, pod: _Pod, stage: Stage) -> None:
        if self._clock.monotonic() < pod.start_at:
            return
        played, again = self._play.pods[index], pod.pending_next
        how = "restarted in its pod" if again is Next.RESTART else "replaced by a new pod"
        stage.note(f"{played.name} is {how} ({played.restart_policy})")
        if again is Next.RECREATE:
            self._folders.forget(played, self._engine)
        pod.pending_next = None
        pod.incarnation += 1
        self._start([index])

    # -- output --------------------------------------------------------------------------------

    def _follow(self, index: int, id: str) -> None:
        name = self._play.pods[index].name
        streams: tuple[Stream, Stream] = ("stdout", "stderr")
        self._followers[index] = [self._read(name, id, stream) for stream in streams]

    def _read(self, name: str, id: str, stream: Stream) -> threading.Thread:
        def put(block: Block) -> None:
            self._output.put((name, stream, block))

        arguments = (self._engine, id, stream, put)
        thread = threading.Thread(target=_read_output, args=arguments, daemon=True)
        thread.start()
        return thread

    def _join(self, indices: list[int]) -> None:
        for index in indices:
            for thread in self._followers.pop(index, []):
                thread.join(LAST_OUTPUT_S)

    def _show(self, stage: Stage) -> None:
        # As many as there are now: pods that print faster than it is shown hold nothing up.
        for _ in range(self._output.qsize()):
            stage.show(*self._output.get())

    # -- the end -------------------------------------------------------------------------------

    def _end(self, stage: Stage) -> None:
        """What cleanPodPolicy says of the pods that still run; here none may stay."""
        running = [
            container
            for container in self._engine.list_containers(self._id)
            if container.state is NodeState.RUNNING
        ]
        if running and self._play.clean_pod_policy == "None":
            stage.note(f"cleanPodPolicy None: in a cluster {len(running)} pods would go on running")
        elif running:
            stage.note(
                f"cleanPodPolicy {self._play.clean_pod_policy}: stopping {len(running)} pods"
            )
        at_once(self._stop, running)
        self._join(list(self._followers))
        self._show(stage)

    def _stop(self, container: Held) -> None:
        self._engine.end(container, self._play.pods[container.node_index].grace_s)


def _read_output(engine: Engine, id: str, stream: Stream, put: Callable[[Block], None]) -> None:
    """Hands on one stream of a container in whole lines, until it ends or is removed."""
    splitter = BlockSplitter()
    wanted = {"stdout": stream == "stdout", "stderr": stream == "stderr"}
    try:
        for chunk in engine.api.logs(id, stream=True, follow=True, **wanted):
            for block in splitter.feed(chunk):
                put(block)
    except Exception as error:  # whatever cuts the stream: the pod's end is seen by its state
        if "404" not in str(error) and "409" not in str(error):
            put(Block(data=f"(output lost: {error})\n".encode()))
    for block in splitter.flush():
        put(block)
