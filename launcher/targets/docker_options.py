"""Renders a node as a container, for ``docker run`` and the SDK: user, limits, /dev/shm, GPUs,
mounts, labels, logs.

A test compares ``docker inspect`` of both: what is printed is what is submitted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.node_plan import Env, Mount, NodePlan
from launcher.follow.target import Door
from launcher.plan.launch_plan import LaunchPlan, Resources
from launcher.plan.target_settings import TargetSettings
from launcher.targets.agent_files import TORCHRUN_MODULE, folder_of, start_argv
from launcher.targets.subprocesses.shell import CONTINUED, quote, render_csv, render_line

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

PYTHON = "python3"
TORCHRUN = "torchrun"
"""Both are found on the image's PATH: it may be any image that holds torch."""
STOP_MARGIN_S = 10
"""Added to the job's grace: the agent reports after its workers have ended."""
STACK_BYTES = 64 << 20
"""A container's limit of the stack: OpenMP and data loaders overflow the usual 8 MiB."""
RDMA_DEVICES = "/dev/infiniband"
LOG_OPTIONS: Env = (("compress", "false"), ("max-file", "1"), ("max-size", "1t"))
"""No rotation: a follower would lose lines. The log is removed with its container."""

Words = tuple[str, ...]

# --pull never: as through the SDK, an image that is absent is an error, not a download.
DOCKER_RUN_ATTACHED: Words = ("docker", "run", "--pull", "never")
DOCKER_RUN: Words = ("docker", "run", "--detach", "--pull", "never")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting of a container: as words of ``docker run``, and as the SDK's arguments.

    ``lines`` are the words as they stand in a script. ``config`` are arguments of
    ``create_container``, ``host`` of ``create_host_config``; if several options set the same
    argument, lists and mappings are joined.
    """

    lines: tuple[Words, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> Words:
        """What is passed to ``docker run``."""
        return tuple(itertools.chain.from_iterable(self.lines))

    @functools.cached_property
    def text(self) -> str:
        """The words for a POSIX shell."""
        return CONTINUED.join(map(render_line, self.lines))


def _line(*words: str) -> tuple[Words, ...]:
    return (words,)


def _each(flag: str, values: Iterable[str]) -> tuple[Words, ...]:
    return tuple((flag, value) for value in values)


@dataclass(frozen=True, kw_only=True)
class ContainerSettings(TargetSettings):
    """Settings of all containers of a run. ``user`` is the ``uid:gid`` of their processes,
    ``userns`` a user namespace other than the engine's usual one.

    ``engine_id`` is the engine's own id, and ``engine_at`` the DOCKER_HOST that led to it; empty if
    each host has its own engine.
    """

    user: str | None = None
    userns: str | None = None
    runtime: str | None = None
    labels: Env = ()
    extra_hosts: Env = ()
    engine_id: str = ""
    engine_at: str = ""


def plan_containers(
    job: JobSpec, user: str | None, security: Collection[str] = ()
) -> ContainerSettings:
    """The job's Docker settings. ``user`` is the ``uid:gid`` that new files shall have on this
    machine, ``security`` are the engine's SecurityOptions from ``docker info``."""
    spec, named = job.docker, {option.partition(",")[0] for option in security}
    if user is not None and "name=rootless" in named:
        # Root in the container is whoever runs the engine; all others are that user's subuids.
        user = "0:0"
    return ContainerSettings(
        user=user,
        # An engine that shifts all ids (userns-remap) would give the files to nobody.
        userns="host" if user is not None and "name=userns" in named else None,
        runtime=spec.runtime,
        labels=spec.labels,
        extra_hosts=spec.extra_hosts,
    )


def enter_container(name: str) -> Door:
    """How programs are run in a container of this machine's engine."""
    enter = ("docker", "exec", "--interactive")
    return Door(
        words=(*enter, name),
        at_terminal=(*enter, "--tty", name),
        python=PYTHON,
        archive=protocol.CONTAINER_AGENT,
    )


@dataclass(frozen=True, kw_only=True)
class Container:
    """One node as a container; ``shared`` are the options that all containers of the plan have.

    The rest is computed on demand, as holding all words of 10,000 nodes at once would be slow.
    """

    plan: LaunchPlan
    node: NodePlan
    shared: tuple[Option, ...]

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def image(self) -> str:
        assert self.plan.image is not None, "the planner gives containers an image"
        return self.plan.image

    @property
    def folder(self) -> str:
        """The node's folder on the launcher's machine."""
        return folder_of(self.plan, self.node)

    @property
    def console(self) -> str:
        """The file that takes the container's output."""
        return f"{self.folder}/{protocol.CONSOLE_FILE}"

    @property
    def options(self) -> tuple[Option, ...]:
        """All options of ``docker run``, which come before the image."""
        name = self.name
        own_name = Option(
            lines=_line("--name", name, "--hostname", name),
            config={"name": name, "hostname": name},
        )
        return (own_name, *self.shared, *_own_options(self.node))

    @property
    def arguments(self) -> Words:
        """What follows the entry point: the agent's files, or torchrun's flags and the command."""
        words = start_argv(self.plan, self.node, PYTHON, protocol.CONTAINER_AGENT)
        return words[1 if self.plan.agent is not None else 1 + len(TORCHRUN_MODULE) :]

    def create_kwargs(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of the SDK's ``create_container``, without ``host_config``.

        ``secrets`` has a value for each of ``node.secrets``. Whoever may use the engine can read
        them as long as the container exists.
        """
        values = [f"{name}={secrets[name]}" for name in self.node.secrets]
        return {
            "image": self.image,
            "command": list(self.arguments),
            **_joined([*(option.config for option in self.options), {"environment": values}]),
        }

    def host_config_kwargs(self) -> dict[str, Any]:
        """Arguments of the SDK's ``create_host_config``."""
        return _joined([option.host for option in self.options])

    def shell(self) -> str:
        """The command that starts the container; secrets come from the shell's environment."""
        options = [option.text for option in self.options]
        words = [quote(word) for word in self.arguments]
        if self.plan.agent is None:
            # A line for each flag, and one for the command.
            flags = len(words) - len(self.node.command)
            words[flags:] = [" ".join(words[flags:])]
        return CONTINUED.join((render_line(DOCKER_RUN), *options, quote(self.image), *words))


# -- options, each in both spellings ----------------------------------------------------------


def shared_options(plan: LaunchPlan, settings: ContainerSettings, network: str) -> Iterator[Option]:
    """What all containers of a run have in common; made once for all of them."""
    yield Option(
        lines=_line("--network", network),
        config={"networking_config": {"EndpointsConfig": {network: {}}}},
        host={"network_mode": network},
    )
    hosts = [f"{name}:{address}" for name, address in settings.extra_hosts]
    if hosts:
        yield Option(lines=_each("--add-host", hosts), host={"extra_hosts": hosts})
    yield _entrypoint(plan)
    timeout_s = plan.stop_grace_s + STOP_MARGIN_S
    yield Option(
        lines=_line("--stop-signal", "SIGTERM", "--stop-timeout", str(timeout_s)),
        config={"stop_signal": "SIGTERM", "stop_timeout": timeout_s},
    )
    if settings.user is not None:
        yield Option(lines=_line("--user", settings.user), config={"user": settings.user})
    if (mode := settings.userns) is not None:
        yield Option(lines=_line("--userns", mode), host={"userns_mode": mode})
    if settings.runtime is not None:
        yield Option(lines=_line("--runtime", settings.runtime), host={"runtime": settings.runtime})
    yield from _limits(plan.resources, plan.accelerator)
    # Not the engine's default driver: json-file replaces bytes that are not UTF-8, and a driver
    # set for the whole engine may rotate logs or keep none.
    log_options = (word for key, value in LOG_OPTIONS for word in ("--log-opt", f"{key}={value}"))
    yield Option(
        lines=_line("--log-driver", "local", *log_options),
        host={"log_config": {"type": "local", "config": dict(LOG_OPTIONS)}},
    )
    attempt = (protocol.LABEL_ATTEMPT, str(plan.attempt))
    yield _labels((*settings.labels, *run_labels(plan), attempt))


def _entrypoint(plan: LaunchPlan) -> Option:
    """Replaces the image's entry point. torchrun needs Docker's init process, the agent none."""
    init, program = ((), PYTHON) if plan.agent is not None else (("--init",), TORCHRUN)
    return Option(
        lines=_line(*init, "--entrypoint", program, "--restart", "no"),
        config={"entrypoint": [program], "detach": True},
        host={**({"init": True} if init else {}), "restart_policy": {"Name": "no"}},
    )


def _limits(resources: Resources, accelerator: str) -> Iterator[Option]:
    if resources.cpus is not None:
        nano = round(resources.cpus * 1e9)
        cpus = f"{nano // 10**9}.{nano % 10**9:09d}".rstrip("0").rstrip(".")
        yield Option(lines=_line("--cpus", cpus), host={"nano_cpus": nano})
    if resources.memory_bytes is not None:
        # The same number for both means no swap, which would make training slow, not fail.
        size = resources.memory_bytes
        yield Option(
            lines=_line("--memory", str(size), "--memory-swap", str(size)),
            host={"mem_limit": size, "memswap_limit": size},
        )
    shm = resources.shm_bytes
    yield Option(lines=_line("--shm-size", str(shm)), host={"shm_size": shm})
    # NCCL and RDMA pin memory. Gloo pins none, and an engine that may not raise memlock (rootless,
    # nested) would start nothing.
    pins = accelerator == "cuda" or resources.rdma
    limits = (*((("memlock", -1),) if pins else ()), ("stack", STACK_BYTES))
    yield Option(
        lines=_each("--ulimit", (f"{name}={limit}:{limit}" for name, limit in limits)),
        host={"ulimits": [{"name": n, "soft": limit, "hard": limit} for n, limit in limits]},
    )
    if resources.rdma:
        yield Option(
            lines=_line("--device", RDMA_DEVICES, "--cap-add", "CAP_IPC_LOCK"),
            host={"devices": [RDMA_DEVICES], "cap_add": ["CAP_IPC_LOCK"]},
        )


def _own_options(node: NodePlan) -> Iterator[Option]:
    """What differs from node to node, or is part of the node's plan."""
    yield _labels(
        (
            (protocol.LABEL_NODE_INDEX, str(node.node_index)),
            (protocol.LABEL_INCARNATION, str(node.incarnation)),
        )
    )
    if node.device_ids:
        # By id: a count would give every container the same first GPUs.
        ids = list(node.device_ids)
        yield Option(
            lines=_line("--gpus", render_csv([f"device={','.join(ids)}"])),
            host={"device_requests": [{"device_ids": ids, "capabilities": [["gpu"]]}]},
        )
    yield _mounts(node.mounts)
    if node.workdir is not None:
        yield Option(lines=_line("--workdir", node.workdir), config={"working_dir": node.workdir})
    # If a name has two values, the last one counts; docker's command line would pick at random.
    env = [f"{name}={value}" for name, value in dict(node.env).items()]
    yield Option(lines=_each("--env", (*env, *node.secrets)), config={"environment": env})


@functools.lru_cache(maxsize=64)
def _mounts(mounts: tuple[Mount, ...]) -> Option:
    # Cached, because all nodes of a plan have the same.
    of_sdk = [
        {"Type": "bind", "Source": m.source, "Target": m.target, "ReadOnly": m.read_only}
        for m in mounts
    ]
    return Option(lines=_each("--mount", map(_mount_words, mounts)), host={"mounts": of_sdk})


def run_labels(plan: LaunchPlan) -> Env:
    """The labels by which a run's containers and network are found."""
    return (
        (protocol.LABEL_RUN_ID, plan.run_id),
        (protocol.LABEL_JOB, plan.job_name),
        (protocol.LABEL_RUN_DIR, plan.run_dir),
    )


def _labels(labels: Env) -> Option:
    lines = _each("--label", (f"{key}={value}" for key, value in labels))
    return Option(lines=lines, config={"labels": dict(labels)})


def _joined(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for key, value in (pair for part in parts for pair in part.items()):
        before = joined.get(key)
        if isinstance(before, dict):
            joined[key] = {**before, **value}
        else:
            joined[key] = [*before, *value] if isinstance(before, list) else value
    return joined


def _mount_words(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return render_csv([*fields, "readonly"] if mount.read_only else fields)
