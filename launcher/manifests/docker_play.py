"""Played pods as containers of a Docker engine: folders for their volumes, the SDK's arguments."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.manifests.play import PlayedPod
from launcher.manifests.play_values import PlayedMount, PlayedVolume
from launcher.targets.docker.engine import Engine, engine_errors
from launcher.targets.docker_options import LOG_OPTIONS

LABEL = "launcher.play-id"
"""The label of all that a play makes. Plays have no run folder, so it is not the label of runs."""
CLEAN = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"
IN_CONTAINER = "/play"
REMOVE_LIMIT_S = 60
"""How long the removal of a play's folders may take."""


class PlayFolders:
    """The folders behind a play's volumes, on this machine."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="launcher-play-"))
        # Containers' users are not this one, and shall reach what lies below.
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
                    # A folder's group would let the container's user in; here all may read.
                    path.chmod(file.mode | 0o444)
            _make_open(self.source(pod, mount))

    def make_termination_log(self, pod: PlayedPod) -> None:
        """Makes the file for the last words of a container that is to start."""
        path = self.termination_log(pod)
        path.parent.mkdir(exist_ok=True)
        # Removed before: an earlier container's user may own it.
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
            # Some belongs to a container's user: removed by one that may.
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
            command=["-c", CLEAN, IN_CONTAINER],
            user="0:0",
            host_config=engine.api.create_host_config(binds=[f"{folder}:{IN_CONTAINER}"]),
        )
        engine.api.start(created["Id"])
        # Without a limit of its own the SDK waits for ever, whatever the client's.
        engine.api.wait(created["Id"], timeout=REMOVE_LIMIT_S)
        engine.remove(created["Id"])


@dataclass(frozen=True, kw_only=True)
class PlayedContainer:
    """A pod's container; ``incarnation`` counts those that the pod's name had before."""

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


def network_kwargs(play_id: str) -> dict[str, Any]:
    """Arguments of the SDK's ``create_network`` for a play's own network."""
    return {"name": play_id, "driver": "bridge", "labels": {LABEL: play_id}}
