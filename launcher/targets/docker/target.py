"""Target ``docker``: one container for each node, on one Docker engine; which image is taken, how
containers end and what they print."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, KeyInputError, TargetError
from launcher.contract.node_plan import NodePlan
from launcher.follow.target import Door, LiveRun, NodeObservation, Observation, Target, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.runs.folder import RunFolder, check_folder, make_folders
from launcher.runs.ledger import agent_ledger
from launcher.targets.agent_files import OWN_IMAGE, choose_agent, write_agent_files
from launcher.targets.at_once import at_once
from launcher.targets.docker.engine import (
    ContainerEnding,
    Engine,
    OwnContainer,
    engine_errors,
    gone_is_fine,
)
from launcher.targets.docker.render import DockerArtifact, render_docker
from launcher.targets.docker_options import (
    RDMA_DEVICES,
    STOP_MARGIN_S,
    TORCHRUN,
    ContainerSettings,
    enter_container,
    plan_containers,
)
from launcher.targets.machine import PROCESSES_PER_CORE, read_gpus, read_used_gpus
from launcher.targets.preflight import read_secrets

if TYPE_CHECKING:
    from docker import APIClient

    from launcher.job.spec import JobSpec

NO_RUNTIME = (
    "the Docker engine has no NVIDIA runtime; fix: install nvidia-container-toolkit, or --on local"
)
TAIL_LINES = 100
"""How many last lines are compared to find a file complete: reading 50 MB takes seconds."""
FOLLOWER_LIMIT_S = 5.0
"""How long what a container printed last may take to come after its end."""


class DockerTarget(Target):
    """Runs each node as a container of the engine that the docker command line would use."""

    name = "docker"
    traits = Traits(sees_other_machines=False)

    def __init__(self, run_root: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self._run_root = run_root
        self._engine = Engine(clock or SystemClock())
        self._consoles = Consoles()
        self._endings: dict[tuple[str, int, int], ContainerEnding] = {}
        """By run, node and incarnation. Kept, as somebody may prune containers that have ended."""

    def facts(self, job: JobSpec) -> TargetFacts:
        info = self._engine.read_info()
        gpus = read_gpus() if not job.is_on_cpu else ()
        if gpus and not has_nvidia(info):
            self.notes.append(f"this machine's GPUs stay unused: {NO_RUNTIME}")
            gpus = ()
        image = job.image or f"{OWN_IMAGE}:{'cuda' if gpus else 'cpu'}"
        config = self._engine.read_image_config(image)
        labels = config.get("Labels") or {}
        torch_version = labels.get(protocol.LABEL_TORCH) or None
        if torch_version is not None and not labels.get(protocol.LABEL_CUDA):
            # The image has labels, and none for CUDA: its torch cannot use GPUs.
            gpus = ()
        in_image, note = choose_agent(job, image, labels.get(protocol.LABEL_AGENT) or None)
        self.notes += [note] if note else []
        return TargetFacts(
            target=self.name,
            place=f"local Docker, image {image}",
            accelerator="cuda" if gpus else "cpu",
            machine=MachineFacts(
                cpu_count=info["NCPU"],
                device_ids=gpus,
                used_ids=read_used_gpus() if job.devices and job.devices.unused else (),
                most_processes=info["NCPU"] * PROCESSES_PER_CORE,
            ),
            image=image,
            agent_in_image=in_image,
            torch_version=torch_version,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
            terminal=sys.stderr.isatty(),
            own=replace(
                plan_containers(
                    job, f"{os.getuid()}:{os.getgid()}", info.get("SecurityOptions") or ()
                ),
                engine_id=info.get("ID", ""),
                engine_at=os.environ.get("DOCKER_HOST", ""),
            ),
        )

    def _check_engine(self, plan: LaunchPlan) -> None:
        """Raises ``TargetError`` if another engine answers than the run's."""
        used = ContainerSettings.of(plan)
        if used.engine_id and used.engine_id != self._engine.id:
            at = f"export DOCKER_HOST={used.engine_at}" if used.engine_at else "unset DOCKER_HOST"
            what = f"{plan.run_id} is on another Docker engine than the one that answers here"
            raise TargetError(what, f"{at}, then the same command")

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        check_host(plan)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> DockerArtifact:
        return render_docker(plan, only)

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``. Raises ``InputError`` for a secret that is not set."""
        artifact = self.render(plan, only)
        secrets = read_secrets(plan.nodes[0].secrets, os.environ)
        make_folders(artifact.folders)
        write_agent_files(artifact.agent)
        replaced = {container.node.node_index for container in artifact.containers}
        earlier = self._engine.list_containers(plan.run_id)
        self._end([c for c in earlier if c.node_index in replaced], timeout_s=0)
        ids = self._engine.create(artifact.network_kwargs(), artifact.containers, secrets)
        for id, container in zip(ids, artifact.containers, strict=True):
            self._consoles.follow(self._engine.api, id, Path(container.console))

    def observe(self, plan: LaunchPlan) -> Observation:
        held = {(c.node_index, c.incarnation): c for c in self._engine.list_containers(plan.run_id)}
        if any((node.node_index, node.incarnation) not in held for node in plan.nodes):
            self._check_engine(plan)
        return Observation(
            run_id=plan.run_id,
            nodes=tuple(
                self._observe(plan, node, held.get((node.node_index, node.incarnation)))
                for node in plan.nodes
            ),
        )

    def _observe(
        self, plan: LaunchPlan, node: NodePlan, held: OwnContainer | None
    ) -> NodeObservation:
        key = plan.run_id, node.node_index, node.incarnation
        state = NodeState.MISSING if held is None else held.state
        if held is not None and state is NodeState.EXITED:
            if (just_read := self._engine.read_ending(held)) is not None:
                self._endings[key] = just_read
            state = NodeState.MISSING
        ending = self._endings.get(key) if state is NodeState.MISSING else None
        detail = "" if ending is None else describe_ending(ending)
        if held is not None and held.is_cut:
            back = f"docker network connect {plan.run_id} {node.name}"
            anew = f"{typed.command('stop', plan.run_id)}, then --resume {plan.run_id}"
            detail = f"it is on no network: {back}; if that one is gone: {anew}"
        observation = NodeObservation(
            node_index=node.node_index,
            incarnation=node.incarnation,
            state=state if ending is None else NodeState.EXITED,
            exit_code=None if ending is None else ending.exit_code,
            out_of_memory=ending is not None and ending.out_of_memory,
            detail=detail,
        )
        return observation.with_outcome(RunFolder(Path(plan.run_dir)))

    def collect(self, plan: LaunchPlan) -> None:
        held = self._engine.list_containers(plan.run_id)
        at_once(self._save, [c for c in held if not self._consoles.is_followed(c.id)])
        ended = [c for c in held if c.state is not NodeState.RUNNING]
        at_once(self._save, [c for c in ended if self._consoles.is_followed(c.id)])

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``; agents get some seconds more, to report after their workers."""
        held = self._engine.list_containers(run_id)
        if not held and (run := RunFolder(self._run_root / run_id)).is_there():
            self._check_engine(run.read_plan())
        timeout_s = math.ceil(grace_s) + STOP_MARGIN_S if grace_s > 0 else 0
        self._end([c for c in held if only is None or c.node_index in only], timeout_s)
        if only is None:
            self._engine.sweep_networks(run_id)

    def _end(self, containers: list[OwnContainer], timeout_s: int) -> None:
        def end(container: OwnContainer) -> None:
            self._engine.end(container, timeout_s if handles_sigterm(container) else 0)

        # A second Ctrl-C does not wait for the containers' grace.
        at_once(end, containers, may_leave=True)
        at_once(self._save, containers)
        self._engine.sweep(containers)
        for c in containers:
            self._endings.pop((c.run_id, c.node_index, c.incarnation), None)

    def _save(self, container: OwnContainer) -> None:
        folder = RunFolder(Path(container.run_dir))
        console = folder.console(container.node_index, container.incarnation)
        with engine_errors("read a container's output"), gone_is_fine():
            self._consoles.save(self._engine.api, container.id, console)

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        return enter_container(plan.nodes[node_index].name)

    def live_runs(self) -> tuple[LiveRun, ...]:
        containers = self._engine.list_containers()
        folders = {**self._engine.list_networks(), **{c.run_id: c.run_dir for c in containers}}
        running = [c.run_id for c in containers if c.state is NodeState.RUNNING]
        return tuple(
            LiveRun(run_id=run_id, run_dir=run_dir, running_nodes=running.count(run_id))
            for run_id, run_dir in sorted(folders.items())
        )


def handles_sigterm(container: OwnContainer) -> bool:
    """Whether the container's first process has a handler for SIGTERM; without one the kernel drops
    the signal.

    An agent that has not begun has none yet, and nothing to save either.
    """
    run = RunFolder(Path(container.run_dir))
    with contextlib.suppress(InputError):
        if run.read_plan().agent is not None:
            return agent_ledger(run, container.node_index, container.incarnation).exists()
    return True


def has_nvidia(info: Mapping[str, Any]) -> bool:
    """Whether an engine that describes itself so can give GPUs to containers."""
    devices = info.get("DiscoveredDevices") or ()
    return "nvidia" in info.get("Runtimes", {}) or any(
        str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in devices
    )


def describe_ending(ending: ContainerEnding) -> str:
    """The engine's word on how a container ended; empty if the exit code says it all."""
    if ending.error:
        return ending.error
    if ending.out_of_memory:
        return "OOMKilled: resources.memory of the job is too little"
    # The container's init process could not start the entry point.
    if ending.exit_code in (126, 127):
        return f"the image has no {TORCHRUN} or python3: name one that holds torch (image)"
    return ""


def check_host(plan: LaunchPlan) -> None:
    """Raises where this machine lacks a folder or device that the containers need."""
    ours = PurePosixPath(protocol.CONTAINER_RUN_DIR).parent
    given = [m for m in plan.nodes[0].mounts if not PurePosixPath(m.target).is_relative_to(ours)]
    # The launcher makes the folders of runs and of a hold's checkpoints. They come last.
    made = (plan.checkpoint_dir, str(Path(plan.run_dir).parent))
    given = [m for m in given if m.source not in made]
    for index, mount in enumerate(given):
        if not Path(mount.source).exists():
            raise KeyInputError(
                ("mounts", index),
                f"{mount.source} not found on this machine",
                f"mkdir -p {shlex.quote(mount.source)}, or correct the source",
            )
    if plan.resources.rdma and not Path(RDMA_DEVICES).exists():
        raise TargetError(
            f"resources.rdma is set, but this machine has no {RDMA_DEVICES}",
            "--set resources.rdma=false, or run where RDMA devices are",
        )


# -- what containers print -------------------------------------------------------------------------


class Consoles:
    """Followers of containers' output, one thread each.

    They read the engine's log. If they were attached, a suspended launcher would block the training
    as soon as a pipe is full.
    """

    def __init__(self) -> None:
        self._followers: dict[str, threading.Thread] = {}

    def follow(self, api: APIClient, id: str, path: Path) -> None:
        """Writes a container's output to a file until the container ends. Does not block."""
        follower = threading.Thread(target=_follow, args=(api, id, path), daemon=True)
        self._followers[id] = follower
        follower.start()

    def is_followed(self, id: str) -> bool:
        """Whether this process is writing that container's output."""
        return id in self._followers and self._followers[id].is_alive()

    def save(self, api: APIClient, id: str, path: Path) -> None:
        """Makes the file hold all that the container has printed so far. Idempotent.

        Waits for the follower, so only for a container that has ended or is not followed.
        """
        if id in self._followers:
            # The follower writes what is left after its container has ended.
            self._followers.pop(id).join(FOLLOWER_LIMIT_S)
        # On a full disk the rest stays in the engine's own log, until the container is removed.
        with contextlib.suppress(OSError):
            if path.parent.is_dir():
                path.touch()
                _complete(api, id, path)


def _follow(api: APIClient, id: str, path: Path) -> None:
    # Whatever ends the stream (engine restarted, container removed, disk full), `save` writes
    # what is then missing.
    with contextlib.suppress(Exception), path.open("wb", buffering=0) as file:
        for chunk in api.logs(id, stream=True, follow=True):
            file.write(chunk)


def _complete(api: APIClient, id: str, path: Path) -> None:
    """Appends what a file lacks; the engine's followers may lose a log's last lines."""
    size = path.stat().st_size
    tail = api.logs(id, tail=TAIL_LINES)
    with path.open("r+b") as file:
        file.seek(max(size - len(tail), 0))
        if file.read() == tail:
            return
        # At its own place, not at the end of the file: a second launcher may do the same.
        file.seek(size)
        file.write(api.logs(id)[size:])
