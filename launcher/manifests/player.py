"""Plays a job on a Docker engine: starts its pods, follows them, restarts them, cleans up."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.errors import ExitCode, InputError, TargetError
from launcher.contract.states import NodeState
from launcher.follow.console import Console
from launcher.follow.lines import BlockSplitter, LineBlock
from launcher.follow.tails import Stream
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
from launcher.manifests.play_values import PlayedMount, PlayedVolume
from launcher.targets.at_once import at_once
from launcher.targets.docker.engine import (
    Engine,
    NotStartedError,
    OwnContainer,
    engine_errors,
)
from launcher.targets.docker_options import LOG_OPTIONS
from launcher.targets.kubernetes.pod_states import Ending, Trouble

LABEL = "launcher.play-id"
"""The label of all that a play makes. Plays have no run folder, so it is not the label of runs."""
POLL_S = 0.2

_Output = tuple[int, Stream, LineBlock]
"""A pod's index, and what it has written."""


class PlayFolders:
    """The folders behind a play's volumes, on this machine."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="launcher-play-"))
        # Containers run as other users, who must reach what lies below.
        self.root.chmod(0o755)

    def make(self, pod: PlayedPod) -> None:
        """Makes all that a pod mounts. Idempotent: what a container has left there stays."""
        for mount in pod.mounts:
            folder = self._of(pod, mount.volume)
            _make_open(folder)
            for file in mount.volume.files:
                path = folder / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    path.write_bytes(file.content)
                    # In a cluster a volume's group lets the container's user in; here all may read.
                    path.chmod(file.mode | 0o444)
            _make_open(self.source(pod, mount))

    def make_termination_log(self, pod: PlayedPod) -> None:
        """Makes the file for the last words of a container that is to start."""
        path = self.termination_log(pod)
        path.parent.mkdir(exist_ok=True)
        # Remove it first: an earlier container's user may own it.
        path.unlink(missing_ok=True)
        path.touch()
        path.chmod(0o666)

    def termination_log(self, pod: PlayedPod) -> Path:
        """The file that a pod's container sees at its ``terminationMessagePath``."""
        return self.root / "ends" / pod.name

    def read_termination(self, pod: PlayedPod) -> str:
        """A container's last words; empty where it left none."""
        with contextlib.suppress(OSError), self.termination_log(pod).open("rb") as file:
            return file.read(protocol.TERMINATION_LIMIT_BYTES).decode(errors="replace").strip()
        return ""

    def source(self, pod: PlayedPod, mount: PlayedMount) -> Path:
        """The folder that is mounted into a pod's container."""
        return self._of(pod, mount.volume) / mount.sub_path

    def _of(self, pod: PlayedPod, volume: PlayedVolume) -> Path:
        if volume.claim:
            return self.root / "claims" / volume.claim
        return self.root / "pods" / pod.name / volume.name

    def remove(self, engine: Engine, image: str, pod: PlayedPod | None = None) -> None:
        """Removes everything, or only a pod's own folders, for a new pod of the same name."""
        folder = self.root if pod is None else self.root / "pods" / pod.name
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists() and os.getuid() != 0:
            # A container's user owns some of it: remove it as root.
            _remove_as_root(engine, image, folder)
            shutil.rmtree(folder, ignore_errors=True)


def _make_open(folder: Path) -> None:
    """Makes a folder that any user of a container may write to."""
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o777)


def _remove_as_root(engine: Engine, image: str, folder: Path) -> None:
    with contextlib.suppress(Exception), engine_errors("remove a play's folders"):
        created = engine.api.create_container(
            image,
            entrypoint=["python3"],
            command=["-c", "import shutil; shutil.rmtree('/play', ignore_errors=True)"],
            user="0:0",
            host_config=engine.api.create_host_config(binds=[f"{folder}:/play"]),
        )
        engine.api.start(created["Id"])
        # Without its own timeout this call waits for ever, whatever the client's timeout.
        engine.api.wait(created["Id"], timeout=60)
        engine.remove(created["Id"])


@dataclass(frozen=True, kw_only=True)
class PlayedContainer:
    """A pod's container; ``incarnation`` counts the earlier containers of the pod's name."""

    play_id: str
    index: int
    incarnation: int
    pod: PlayedPod
    folders: PlayFolders = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.play_id}-{self.pod.kind.lower()}-{self.pod.index}"

    @property
    def image(self) -> str:
        return self.pod.image

    def create_kwargs(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of the SDK's ``create_container``, without ``host_config``."""
        pod = self.pod
        return _given(
            {
                "image": pod.image,
                "name": self.name,
                "hostname": pod.name,
                "detach": True,
                "environment": [f"{name}={value}" for name, value in pod.env],
                "labels": {
                    LABEL: self.play_id,
                    protocol.LABEL_NODE_INDEX: str(self.index),
                    protocol.LABEL_INCARNATION: str(self.incarnation),
                },
                "stop_timeout": pod.grace_s,
                "networking_config": {
                    "EndpointsConfig": {self.play_id: {"Aliases": list(pod.aliases)}}
                },
                "entrypoint": None if pod.entrypoint is None else list(pod.entrypoint),
                "command": None if pod.arguments is None else list(pod.arguments),
                "working_dir": pod.workdir,
                "user": pod.user,
            }
        )

    def host_config_kwargs(self) -> dict[str, Any]:
        """Arguments of the SDK's ``create_host_config``."""
        pod = self.pod
        device_request = {"device_ids": list(pod.device_ids), "capabilities": [["gpu"]]}
        return _given(
            {
                "network_mode": self.play_id,
                "mounts": self._mounts(),
                "log_config": {"type": "local", "config": dict(LOG_OPTIONS)},
                "nano_cpus": None if pod.cpus is None else round(pod.cpus * 1e9),
                "mem_limit": pod.memory_bytes,
                "memswap_limit": pod.memory_bytes,
                "shm_size": pod.shm_bytes,
                "cap_drop": list(pod.cap_drop) or None,
                "cap_add": list(pod.cap_add) or None,
                "security_opt": ["no-new-privileges"] if pod.no_new_privileges else None,
                "read_only": pod.read_only or None,
                "device_requests": [device_request] if pod.device_ids else None,
            }
        )

    def _mounts(self) -> list[dict[str, Any]]:
        found = [
            (self.folders.source(self.pod, mount), mount.target, mount.read_only)
            for mount in self.pod.mounts
        ]
        ends = self.folders.termination_log(self.pod)
        if ends.exists():
            found.append((ends, self.pod.termination_log, False))
        return [
            {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}
            for source, target, read_only in found
        ]


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}


# -- following it ------------------------------------------------------------------------------


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
            held = f"docker ps --all --quiet --filter label={LABEL}={self._id}"
            raise TargetError(
                f"STILL RUNNING: {self._id}: {error.what}",
                f"docker rm --force --volumes $({held}); docker network rm {self._id}; "
                f"rm -r {self._folders.root}",
            ) from error
        finally:
            self._show()
        self._folders.remove(self._engine, self._play.pods[0].image)

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
            network = {"name": self._id, "driver": "bridge", "labels": {LABEL: self._id}}
            ids = self._engine.create(network, containers, {})
        except NotStartedError as error:
            names = {made.name: made.pod.name for made in containers}
            # A cluster would try again, for ever if the restart policy says so.
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
                self._replace(pod)
            elif container.state is NodeState.EXITED:
                self._take_ending(pod, container)

    def _replace(self, pod: _Pod) -> None:
        """Makes a new pod in the place of one that was removed, where its policy restarts it."""
        now = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat()
        killed = Ending(exit_code=ExitCode.KILLED, word="", message="", started="", finished=now)
        if decide_next(pod.played.restart_policy, ExitCode.KILLED) is Next.FAILED:
            pod.state = replace(pod.state, ending=killed, ended=Next.FAILED)
        else:
            self._restart(pod, Next.RECREATE)

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
        # Do not restart if this restart is one too many: the job has failed then.
        if self._decide() is None:
            self._restart(pod, following)

    def _read_ending(self, pod: _Pod, container: OwnContainer) -> Ending | None:
        """How a container ended, with its last words; None if the container is gone."""
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
                # The engine may be slow to send the last output of an ended container.
                thread.join(5.0)
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
        """Decides again once all pods have ended: a victim may end before the pod that failed."""
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
    """Passes on one stream of a container in whole lines, until it ends or is cut."""
    splitter = BlockSplitter()
    wanted = {"stdout": stream == "stdout", "stderr": stream == "stderr"}
    # Whatever cuts the stream, the player sees the pod's end by its state.
    with contextlib.suppress(Exception):
        for chunk in engine.api.logs(id, stream=True, follow=True, **wanted):
            for block in splitter.feed(chunk):
                put((index, stream, block))
    for block in splitter.flush():
        put((index, stream, block))
