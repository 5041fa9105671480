"""Plays a job on a Docker engine: starts its pods, follows them, restarts them, cleans up."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from launcher.contract.clock import Clock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.reasons import NodeState
from launcher.follow.console import Console
from launcher.follow.lines import BlockSplitter, LineBlock
from launcher.follow.tails import Stream
from launcher.manifests.docker_play import (
    LABEL,
    PlayedContainer,
    PlayFolders,
    network_kwargs,
)
from launcher.manifests.play import (
    Next,
    Play,
    PlayedPod,
    PlayOutcome,
    PodState,
    decide_next,
    decide_outcome,
    tell_ending,
)
from launcher.targets.docker.engine import Engine, NotStartedError, OwnContainer, at_once
from launcher.targets.kubernetes.pod_states import Ending, Trouble

POLL_S = 0.2
LAST_OUTPUT_S = 5.0
"""How long the engine may take to send the last output of an ended container."""

_Output = tuple[int, Stream, LineBlock]
"""A pod's index, and what it has written."""


@dataclass
class _Pod:
    """A pod while it is played."""

    index: int
    played: PlayedPod
    state: PodState = field(default_factory=PodState)
    incarnation: int = 0
    readers: Sequence[threading.Thread] = ()
    """They read the output of the container that was started last."""


class Player:
    """One play. ``play`` blocks until the job has ended; ``close`` leaves nothing behind.

    The console shows each pod's lines behind the pod's role and index.
    """

    def __init__(
        self, play: Play, play_id: str, engine: Engine, clock: Clock, console: Console
    ) -> None:
        self._play, self._id = play, play_id
        self._engine, self._clock, self._console = engine, clock, console
        self._folders = PlayFolders()
        self._pods = [_Pod(index, played) for index, played in enumerate(play.pods)]
        self._output: queue.SimpleQueue[_Output] = queue.SimpleQueue()

    def play(self) -> PlayOutcome:
        """Follows the job to its end by the operator's rules. Raises ``TargetError``."""
        self._start(self._pods)
        while True:
            self._advance()
            self._show()
            if (outcome := self._decide()) is not None:
                self._end()
                return outcome if outcome.succeeded else self._tell_first(outcome)
            self._clock.sleep(POLL_S)

    def _decide(self) -> PlayOutcome | None:
        return decide_outcome(self._play, tuple(pod.state for pod in self._pods))

    def close(self) -> None:
        """Removes containers, network and folders, by force. Idempotent.

        Raises ``TargetError`` with the commands to type where the engine does not remove them.
        """
        try:
            self._engine.sweep(self._engine.list_containers(self._id))
            self._join(self._pods)
            self._engine.sweep_networks(self._id)
        except TargetError as error:
            raise self._still_running(error) from error
        finally:
            self._show()
        self._folders.remove(self._engine, self._play.pods[0].image)

    def _still_running(self, why: TargetError) -> TargetError:
        held = f"docker ps --all --quiet --filter label={LABEL}={self._id}"
        return TargetError(
            f"STILL RUNNING: {self._id}: {why.what}",
            f"docker rm --force --volumes $({held}); docker network rm {self._id}; "
            f"rm -r {self._folders.root}",
        )

    # -- starting and restarting ---------------------------------------------------------------

    def _start(self, pods: Sequence[_Pod]) -> None:
        for pod in pods:
            self._folders.make(pod.played)
            if self._engine.is_here:
                self._folders.make_termination_log(pod.played)
        containers = [
            PlayedContainer(
                play_id=self._id,
                index=pod.index,
                incarnation=pod.incarnation,
                pod=pod.played,
                folders=self._folders,
            )
            for pod in pods
        ]
        try:
            ids = self._engine.create(network_kwargs(self._id), containers, {})
        except NotStartedError as error:
            names = {made.name: made.pod.name for made in containers}
            # A cluster would try again, for ever where the restart policy says so.
            raise InputError(
                f"{names[error.name]}: StartError: {error.said}",
                "correct the container's command, or --image REF with an image that has it",
            ) from error
        for pod, id in zip(pods, ids, strict=True):
            pod.readers = [
                threading.Thread(
                    target=_read_output,
                    args=(self._engine, pod.index, id, self._output.put, stream),
                    daemon=True,
                )
                for stream in ("stdout", "stderr")
            ]
            for thread in pod.readers:
                thread.start()

    def _advance(self) -> None:
        """Looks at every pod once, and acts on what it finds."""
        held = {c.node_index: c for c in self._engine.list_containers(self._id)}
        for pod in self._pods:
            if pod.state.ended is not None:
                continue
            if (container := held.get(pod.index)) is None:
                self._join([pod])
                self._console.note(f"{pod.played.name} is gone: somebody removed its container")
                self._restart(pod, Next.RECREATE)
            elif container.state is NodeState.EXITED:
                self._take_ending(pod, container)

    def _take_ending(self, pod: _Pod, container: OwnContainer) -> None:
        ending = self._read_ending(pod, container)
        if ending is None:
            return
        self._join([pod])
        self._show()
        following = decide_next(pod.played.restart_policy, ending.exit_code)
        self._console.note(tell_ending(pod.played.name, ending))
        if following in (Next.SUCCEEDED, Next.FAILED):
            pod.state = replace(pod.state, ending=ending, ended=following)
            return
        restarts = pod.state.restarts + (following is Next.RESTART)
        pod.state = replace(pod.state, ending=ending, restarts=restarts)
        self._engine.sweep([container])
        # Not where this restart is one too many: the job has failed by now.
        if self._decide() is None:
            self._restart(pod, following)

    def _read_ending(self, pod: _Pod, container: OwnContainer) -> Ending | None:
        """How a container ended, with its last words; None where it is gone by now."""
        found = self._engine.read_ending(container)
        if found is None:
            return None
        return Ending(
            exit_code=found.exit_code,
            word=Trouble.OUT_OF_MEMORY.value if found.out_of_memory else "",
            message=self._folders.read_termination(pod.played),
            started="",
            finished=found.finished,
        )

    def _restart(self, pod: _Pod, again: Next) -> None:
        how = "restarted in its pod" if again is Next.RESTART else "replaced by a new pod"
        self._console.note(f"{pod.played.name} is {how} ({pod.played.restart_policy})")
        if again is Next.RECREATE:
            self._folders.remove(self._engine, pod.played.image, pod.played)
        pod.incarnation += 1
        self._start([pod])

    # -- output --------------------------------------------------------------------------------

    def _join(self, pods: Iterable[_Pod]) -> None:
        for pod in pods:
            for thread in pod.readers:
                thread.join(LAST_OUTPUT_S)
            pod.readers = ()

    def _show(self) -> None:
        # No more than is queued now, so that pods that print fast do not block the loop.
        for _ in range(self._output.qsize()):
            index, stream, block = self._output.get()
            lines = replace(block, data=block.data + b"\n") if block.is_progress else block
            pod = self._play.pods[index]
            prefix = f"[{pod.kind.lower()}-{pod.index}]"
            self._console.show(lines, stream=stream, prefix=prefix, colour_key=index)

    # -- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stops the pods that still run, and says what cleanPodPolicy would do with them."""
        containers = self._engine.list_containers(self._id)
        running = [c for c in containers if c.state is NodeState.RUNNING]
        policy, pods = self._play.clean_pod_policy, f"{len(running)} pods"
        if running:
            in_cluster = f"in a cluster {pods} would go on running"
            told = in_cluster if policy == "None" else f"stopping {pods}"
            self._console.note(f"cleanPodPolicy {policy}: {told}")
        at_once(self._stop, running)
        self._join(self._pods)
        self._show()

    def _tell_first(self, outcome: PlayOutcome) -> PlayOutcome:
        """The outcome with the first failure, once all have ended: a victim may end sooner."""
        for container in self._engine.list_containers(self._id):
            pod = self._pods[container.node_index]
            if pod.state.ended is None and container.state is NodeState.EXITED:
                ending = self._read_ending(pod, container)
                policy = pod.played.restart_policy
                if ending and decide_next(policy, ending.exit_code) is Next.FAILED:
                    pod.state = replace(pod.state, ended=Next.FAILED, ending=ending)
        return self._decide() or outcome

    def _stop(self, container: OwnContainer) -> None:
        self._engine.end(container, self._play.pods[container.node_index].grace_s)


def _read_output(
    engine: Engine, index: int, id: str, put: Callable[[_Output], None], stream: Stream
) -> None:
    """Hands on one stream of a container in whole lines, until it ends or is cut."""
    splitter = BlockSplitter()
    wanted = {"stdout": stream == "stdout", "stderr": stream == "stderr"}
    # Whatever cuts the stream: the pod's end is seen by its state.
    with contextlib.suppress(Exception):
        for chunk in engine.api.logs(id, stream=True, follow=True, **wanted):
            for block in splitter.feed(chunk):
                put((index, stream, block))
    for block in splitter.flush():
        put((index, stream, block))
