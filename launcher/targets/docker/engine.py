"""The Docker engine, used through its SDK: what a run holds there, found by labels; and the fix for
each of its errors.

The SDK is imported at first use: most commands do not need it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.causes import NodeState
from launcher.contract.clock import Clock
from launcher.contract.errors import SilentTargetError, TargetError, closest
from launcher.targets.agent_files import OWN_IMAGE
from launcher.targets.at_once import at_once
from launcher.targets.docker_options import Container

if TYPE_CHECKING:
    from docker import APIClient


CONNECT_LIMIT_S = 5
"""How long the engine may take to say its version, at first."""
REQUEST_TIMEOUT_S = 60
"""Starting a container with GPUs takes seconds; an engine silent for this long is dead."""
SWEEP_LIMIT_S = 30.0
"""How long the engine may take to remove what has ended."""

STATES: Mapping[str, NodeState] = {
    "created": NodeState.PENDING,
    "running": NodeState.RUNNING,
    "paused": NodeState.RUNNING,
    "restarting": NodeState.RUNNING,
    "removing": NodeState.MISSING,
    "exited": NodeState.EXITED,
    "dead": NodeState.EXITED,
}
"""A container's state by the engine's name for it."""

PERMISSION_HINT = "sudo usermod -aG docker $USER and log in again, or run with --on local"
SILENT_HINT = "docker info, which shows whether it hangs; if so, restart the engine"
REMOTE_HINT = "unset DOCKER_HOST: containers use this machine's folders; for others: --hosts HOST"
START_HINT = "start Docker (sudo systemctl start docker, or .ci/setup), or run with --on local"
RUNTIME_HINT = "set docker.runtime of the job to one that `docker info` lists"
HINTS: tuple[tuple[str, str], ...] = (
    ("cpus available", "lower resources.cpus of the job"),
    ("minimum memory limit", "raise resources.memory of the job"),
    ("could not select device driver", "install nvidia-container-toolkit, or resources.gpus: 0"),
    ("unknown runtime", RUNTIME_HINT),
    ("unknown or invalid runtime", RUNTIME_HINT),
    ("setting rlimit", "set LimitMEMLOCK=infinity for the Docker service: NCCL and RDMA need it"),
    ("no command specified", "give the container a command: its image starts nothing by itself"),
    ("invalid reference format", "correct the image's name: REGISTRY/NAME:TAG, in small letters"),
    ("address pool", "docker network prune: every run needs a network of its own"),
    ("already in use", "docker rm --force that container: it does not belong to this run"),
    ("source path does not exist", REMOTE_HINT),
    ("active endpoints", "docker network disconnect whatever else is on the run's network"),
)
"""A part of an engine's message, in lower case, and the fix."""


@dataclass(frozen=True, kw_only=True)
class OwnContainer:
    """A run's container as the engine lists it, with what its labels say.

    ``is_cut``: it runs, and is on no network: somebody has taken it off.
    """

    id: str
    run_id: str
    run_dir: str
    node_index: int
    incarnation: int
    state: NodeState
    is_cut: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerEnding:
    """How a container ended. ``error`` is the engine's message, empty if it has none."""

    exit_code: int
    out_of_memory: bool
    error: str


class Engine:
    """The engine that the docker command line uses, with what it holds of runs.

    Each method may raise ``TargetError``. Removing what is already gone is no error.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @functools.cached_property
    def api(self) -> APIClient:
        """The SDK's client, connected. To be used inside ``engine_errors``."""
        import docker

        api = docker.from_env(timeout=CONNECT_LIMIT_S).api
        api.timeout = REQUEST_TIMEOUT_S
        return api

    @functools.cached_property
    def id(self) -> str:
        """The engine's own id, which it keeps with its containers."""
        return str(self.read_info().get("ID", ""))

    def read_info(self) -> dict[str, Any]:
        """What ``docker info`` says."""
        with engine_errors("describe itself"):
            info: dict[str, Any] = self.api.info()
            return info

    def read_image_config(self, image: str) -> dict[str, Any]:
        """An image's labels, folder and so on. Raises ``TargetError`` if it is not here."""
        import docker.errors

        with engine_errors(f"inspect {image}", image):
            try:
                inspected = self.api.inspect_image(image)  # type: ignore[no-untyped-call]
            except docker.errors.ImageNotFound as error:
                tags = (tag for local in self.api.images() for tag in local["RepoTags"] or ())
                near = closest(image, tags, 0.8)
                if not near or image.startswith(f"{OWN_IMAGE}:"):
                    raise
                what, fix = f"image {image} is not on this machine", _image_hint(image)
                raise TargetError(what, f"did you mean --image {near}? Else: {fix}") from error
            return inspected["Config"] or {}

    def list_containers(self, run_id: str | None = None) -> list[OwnContainer]:
        """The containers of one run, or of all, whatever their state."""
        with engine_errors("list containers"):
            listed = self.api.containers(all=True, filters={"label": _label(run_id)})
            return [_parse_container(container) for container in listed]

    def list_networks(self, run_id: str | None = None) -> dict[str, str]:
        """Run folders, by run id, of those runs (or the one) that have a network."""
        labels = [network["Labels"] for network in self._networks(run_id)]
        return {n[protocol.LABEL_RUN_ID]: n.get(protocol.LABEL_RUN_DIR, "") for n in labels}

    def _networks(self, run_id: str | None) -> list[dict[str, Any]]:
        with engine_errors("list networks"):
            return list(self.api.networks(filters={"label": _label(run_id)}))

    def read_ending(self, container: OwnContainer) -> ContainerEnding | None:
        """How a container ended; None if it is gone by now."""
        import docker.errors

        with engine_errors("inspect a container"):
            try:
                state = self.api.inspect_container(container.id)["State"]
            except docker.errors.NotFound:
                return None
            return ContainerEnding(
                exit_code=state["ExitCode"],
                out_of_memory=state["OOMKilled"],
                error=state["Error"],
            )

    def create(
        self,
        network_kwargs: Mapping[str, Any],
        containers: Sequence[Container],
        secrets: Mapping[str, str],
    ) -> list[str]:
        """Creates and starts a run's containers, on its network; returns their ids, in order.

        On any error or Ctrl-C, it removes what it has created.
        """
        run_id = network_kwargs["labels"][protocol.LABEL_RUN_ID]
        with engine_errors(f"start {run_id}"), contextlib.ExitStack() as undo:
            made: list[str] = []
            # Undone last: a network can only be removed after its containers.
            undo.callback(lambda: at_once(self._remove_network, made))

            def create_network() -> None:
                if not self.list_networks(run_id):
                    network = self.api.create_network(check_duplicate=True, **network_kwargs)
                    made.append(network["Id"])

            def create(container: Container) -> tuple[str, str]:
                with engine_errors(f"create {container.name}", container.image):
                    host_config = self.api.create_host_config(**container.host_config_kwargs())
                    arguments = container.create_kwargs(secrets)
                    created = self.api.create_container(host_config=host_config, **arguments)
                    undo.callback(self.remove, created["Id"])
                    return container.name, str(created["Id"])

            def start(created: tuple[str, str]) -> None:
                name, id = created
                with engine_errors(f"start {name}"):
                    self.api.start(id)

            # The network is made beside the containers, which need it only when they start.
            with ThreadPoolExecutor(1) as pool:
                networked = pool.submit(create_network)
                pairs = at_once(create, containers)
                # Ended by the limit of the request to the engine.
                networked.result()
            # All containers exist before the first starts: no node waits for one that cannot come.
            at_once(start, pairs)
            undo.pop_all()
            return [id for _, id in pairs]

    def end(self, container: OwnContainer, timeout_s: int) -> None:
        """Stops a container, by force after ``timeout_s`` seconds; it stays until removed."""
        with engine_errors("stop a container"), gone_is_fine():
            if container.state is not NodeState.RUNNING:
                return
            if timeout_s > 0:
                self.api.stop(container.id, timeout=timeout_s)
            else:
                self.api.kill(container.id)

    def remove(self, id: str) -> None:
        """Removes a container and its anonymous volumes, by force."""
        with engine_errors("remove a container"), gone_is_fine():
            self.api.remove_container(id, v=True, force=True)

    def sweep(self, containers: list[OwnContainer]) -> None:
        """Removes those containers; returns when they are gone."""
        ids = {container.id for container in containers}
        at_once(self.remove, ids)
        self._until_gone(lambda: [c.id for c in self.list_containers() if c.id in ids], self.remove)

    def sweep_networks(self, run_id: str) -> None:
        """Removes a run's network; returns when it is gone."""
        self._until_gone(lambda: [n["Id"] for n in self._networks(run_id)], self._remove_network)

    def _remove_network(self, id: str) -> None:
        with engine_errors("remove a network"), gone_is_fine():
            self.api.remove_network(id)

    def _until_gone(self, left: Callable[[], list[str]], remove: Callable[[str], None]) -> None:
        # Tried again: another call may be removing a container, which holds its network until then.
        deadline = self._clock.monotonic() + SWEEP_LIMIT_S
        while ids := left():
            try:
                for id in ids:
                    remove(id)
            except TargetError:
                if self._clock.monotonic() > deadline:
                    raise
            if self._clock.monotonic() > deadline:
                what = f"the Docker engine has not removed {ids[0]} within {SWEEP_LIMIT_S:g} s"
                raise TargetError(what, "sudo systemctl restart docker, then the same command")
            self._clock.sleep(0.05)


@contextlib.contextmanager
def engine_errors(doing: str, image: str = "") -> Iterator[None]:
    """Turns the SDK's errors into ``TargetError``; ``image`` is one that may be absent."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise TargetError(f"image {image} is not on this machine", _image_hint(image)) from error
    except docker.errors.APIError as error:
        text = str(error.explanation or error).strip()
        hint = next((hint for part, hint in HINTS if part in text.lower()), "")
        raise TargetError(f"the Docker engine cannot {doing}: {text}", hint) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        where = os.environ.get("DOCKER_HOST") or "its usual socket"
        # The SDK wraps the reason four deep.
        causes = [*_causes(error)]
        if any(isinstance(cause, requests.ReadTimeout) for cause in causes):
            what = f"the Docker engine at {where} is there, but does not answer"
            raise SilentTargetError(f"{what} (it was to {doing})", SILENT_HINT) from error
        hint = PERMISSION_HINT if isinstance(causes[-1], PermissionError) else START_HINT
        hint = REMOTE_HINT if where.startswith("ssh://") else hint
        text = getattr(causes[-1], "strerror", None) or str(causes[-1])
        raise TargetError(f"no Docker engine answers at {where}: {text}", hint) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def gone_is_fine() -> Iterator[None]:
    """Lets pass that a container or network is gone, has ended, or is just being removed."""
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise


def _image_hint(image: str) -> str:
    name, _, flavor = image.partition(":")
    if name != OWN_IMAGE:
        return f"docker pull {image}"
    make = f"make image FLAVOR={flavor} in this project's repository"
    return f"--image REF with an image that holds torch, or {make}"


def _label(run_id: str | None) -> str:
    return protocol.LABEL_RUN_ID if run_id is None else f"{protocol.LABEL_RUN_ID}={run_id}"


def _parse_container(listed: Mapping[str, Any]) -> OwnContainer:
    labels, state = listed["Labels"], STATES.get(listed["State"], NodeState.MISSING)
    networks = listed.get("NetworkSettings", {}).get("Networks")
    return OwnContainer(
        id=listed["Id"],
        run_id=labels[protocol.LABEL_RUN_ID],
        run_dir=labels.get(protocol.LABEL_RUN_DIR, ""),
        node_index=int(labels.get(protocol.LABEL_NODE_INDEX, -1)),
        incarnation=int(labels.get(protocol.LABEL_INCARNATION, -1)),
        state=state,
        is_cut=state is NodeState.RUNNING and networks == {},
    )
