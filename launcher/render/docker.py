"""Renders a plan as containers of one Docker engine: one per node, on a network of the run.

Every option is written once, in its two spellings side by side: the words of ``docker run``
and the keyword arguments of the Docker SDK. So what is printed and what is submitted cannot
part; a test holds ``docker inspect`` of both equal.
"""

from __future__ import annotations

import csv
import functools
import io
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher import contract
from launcher.node_plan import Env, Mount, NodePlan
from launcher.plan import LaunchPlan, Resources
from launcher.render.shell import render_lines
from launcher.torchrun import parse_torch_version, plan_settings, render_argv

ENTRYPOINT = "torchrun"
"""Found through the image's PATH: a foreign image may hold nothing of this project but torch."""
STOP_MARGIN_S = 10
"""On top of the job's grace, for the agent to report after its workers have ended."""
STACK_BYTES = 64 * 2**20
RDMA_DEVICES = "/dev/infiniband"
LOG_OPTIONS: Env = (("compress", "false"), ("max-file", "1"), ("max-size", "1t"))
"""No rotation: a follower loses what is rotated away. The log goes with its container."""

Words = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting of a container: as words of ``docker run``, and as the SDK's arguments.

    ``config`` are arguments of ``create_container``, ``host`` of ``create_host_config``; where
    options name the same one, lists and mappings are joined. ``pairs``: printed two words a line.
    """

    words: Words
    pairs: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> tuple[Words, ...]:
        """The words as they are grouped in print."""
        step = 2 if self.pairs else max(len(self.words), 1)
        return tuple(self.words[at : at + step] for at in range(0, len(self.words), step))


@dataclass(frozen=True, kw_only=True)
class Container:
    """One node as a container; ``flags`` and ``command`` are the entry point's arguments."""

    node_index: int
    incarnation: int
    name: str
    image: str
    options: tuple[Option, ...]
    flags: Words
    command: Words
    mounts: tuple[Mount, ...]
    secrets: Words
    rdma: bool
    console: str

    def create_kwargs(self, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of the SDK's ``create_container``, without ``host_config``.

        ``secrets`` holds a value for each name in ``self.secrets``.
        """
        values = [f"{name}={secrets[name]}" for name in self.secrets]
        return {
            "image": self.image,
            "command": [*self.flags, *self.command],
            **_joined([*(option.config for option in self.options), {"environment": values}]),
        }

    def host_config_kwargs(self) -> dict[str, Any]:
        """Arguments of the SDK's ``create_host_config``."""
        return _joined([option.host for option in self.options])

    def docker_run_argv(self) -> Words:
        """The command line that starts this container; secrets come from its environment."""
        return tuple(word for line in self._lines() for word in line)

    def shell(self) -> str:
        """``docker_run_argv`` for a POSIX shell, one option per line."""
        return render_lines(self._lines())

    def _lines(self) -> tuple[Words, ...]:
        # --pull never: as through the SDK, an image that is absent is an error, not a download.
        first = ("docker", "run", "--detach", "--pull", "never")
        options = (line for option in self.options for line in option.lines())
        flags = ((flag,) for flag in self.flags)
        return (first, *options, (self.image,), *flags, self.command)


@dataclass(frozen=True, kw_only=True)
class DockerArtifact:
    """A plan as a network and containers; ``labels`` are the network's.

    ``folders`` must exist before the containers do: what the engine creates belongs to root.
    """

    run_id: str
    network: str
    labels: Env
    folders: tuple[str, ...]
    containers: tuple[Container, ...]

    def network_kwargs(self) -> dict[str, Any]:
        """Arguments of the SDK's ``create_network``."""
        return {"name": self.network, "driver": "bridge", "labels": dict(self.labels)}

    def shell(self) -> str:
        """A script that does the same by hand, without this project."""
        return "\n".join(
            [
                "#!/bin/sh",
                "# One container per node, on a network of their own. Ends when all have ended;",
                "# removes them and the network then, and on Ctrl-C.",
                "set -eu",
                *(
                    f': "${{{name}:?is a secret of the job: export it first}}"'
                    for name in sorted({n for c in self.containers for n in c.secrets})
                ),
                render_lines((("mkdir", "-p"), *((folder,) for folder in self.folders))),
                "",
                "# Fails where the run is already there, before anything of it could be touched.",
                self._network(),
                "",
                *self._cleanup(),
                *(f"\n{container.shell()}" for container in self.containers),
                "",
                *self._wait(),
                "",
            ]
        )

    def _network(self) -> str:
        first = ("docker", "network", "create", "--driver", "bridge")
        labels = (("--label", f"{key}={value}") for key, value in self.labels)
        return render_lines((first, *labels, (self.network,)))

    def _cleanup(self) -> list[str]:
        label = shlex.quote(f"label={contract.LABEL_RUN_ID}={self.run_id}")
        return [
            "finish() {",
            "  trap '' INT TERM HUP",
            f"  containers=$(docker ps --all --quiet --filter {label})",
            '  if [ -n "$containers" ]; then',
            "    docker stop $containers >/dev/null",
            "    docker rm --force --volumes $containers >/dev/null",
            "  fi",
            f"  docker network rm {shlex.quote(self.network)} >/dev/null",
            "}",
            "trap finish EXIT",
            "trap 'exit 130' INT",
            "trap 'exit 143' TERM HUP",
        ]

    def _wait(self) -> list[str]:
        names = shlex.join(container.name for container in self.containers)
        return [
            "# Shows and keeps what the nodes print until they end.",
            *(
                f"docker logs --follow {shlex.quote(c.name)} 2>&1 | tee {shlex.quote(c.console)} &"
                for c in self.containers
            ),
            "wait",
            f"for code in $(docker wait {names}); do",
            '  [ "$code" -eq 0 ] || exit 1',
            "done",
        ]


def render_docker(plan: LaunchPlan, only: tuple[int, ...] | None = None) -> DockerArtifact:
    """The plan's nodes (or ``only`` those) as containers. Each is named as its host is."""
    chosen = [node for node in plan.nodes if only is None or node.node_index in only]
    shared = tuple(_shared_options(plan))
    return DockerArtifact(
        run_id=plan.run_id,
        network=plan.run_id,
        labels=_run_labels(plan),
        folders=(plan.run_dir, plan.checkpoint_dir, *(_folder(plan, node) for node in chosen)),
        containers=tuple(_container(plan, node, shared) for node in chosen),
    )


def _container(plan: LaunchPlan, node: NodePlan, shared: tuple[Option, ...]) -> Container:
    assert plan.image is not None, "the planner gives containers an image"
    settings = plan_settings(node, parse_torch_version(plan.torch_version), plan.stop_grace_s)
    return Container(
        node_index=node.node_index,
        incarnation=node.incarnation,
        name=node.name,
        image=plan.image,
        options=(_name(node), *shared, *_own_options(plan, node)),
        flags=render_argv((), settings, ()),
        command=node.command,
        mounts=node.mounts,
        secrets=node.secrets,
        rdma=plan.resources.rdma,
        console=f"{_folder(plan, node)}/{contract.CONSOLE_FILE}",
    )


def _folder(plan: LaunchPlan, node: NodePlan) -> str:
    return f"{plan.run_dir}/{contract.NODES_DIR}/{node.node_index}/{node.incarnation}"


# -- options, each in both spellings ----------------------------------------------------------


def _shared_options(plan: LaunchPlan) -> Iterator[Option]:
    """What all containers of a run have in common, made once: rendering stays cheap."""
    yield Option(
        words=("--network", plan.run_id),
        config={"networking_config": {"EndpointsConfig": {plan.run_id: {}}}},
        host={"network_mode": plan.run_id},
    )
    hosts = [f"{name}:{address}" for name, address in plan.extra_hosts]
    if hosts:
        yield Option(words=_each("--add-host", hosts), pairs=True, host={"extra_hosts": hosts})
    # The override also drops the image's own init process, if it has one: --init is then the only.
    yield Option(
        words=("--init", "--entrypoint", ENTRYPOINT, "--restart", "no"),
        config={"entrypoint": [ENTRYPOINT], "detach": True},
        host={"init": True, "restart_policy": {"Name": "no"}},
    )
    timeout_s = plan.stop_grace_s + STOP_MARGIN_S
    yield Option(
        words=("--stop-signal", "SIGTERM", "--stop-timeout", str(timeout_s)),
        config={"stop_signal": "SIGTERM", "stop_timeout": timeout_s},
    )
    if plan.user is not None:
        yield Option(words=("--user", plan.user), config={"user": plan.user})
    if plan.runtime is not None:
        yield Option(words=("--runtime", plan.runtime), host={"runtime": plan.runtime})
    yield from _limits(plan.resources, plan.accelerator)
    yield _log()
    yield _labels((*plan.labels, *_run_labels(plan), (contract.LABEL_ATTEMPT, str(plan.attempt))))


def _limits(resources: Resources, accelerator: str) -> Iterator[Option]:
    if resources.cpus is not None:
        nano = round(resources.cpus * 1e9)
        cpus = f"{nano // 10**9}.{nano % 10**9:09d}".rstrip("0").rstrip(".")
        yield Option(words=("--cpus", cpus), host={"nano_cpus": nano})
    if resources.memory_bytes is not None:
        # The same number for both: no swap, in which training would crawl rather than fail.
        size = resources.memory_bytes
        yield Option(
            words=("--memory", str(size), "--memory-swap", str(size)),
            host={"mem_limit": size, "memswap_limit": size},
        )
    shm = resources.shm_bytes
    yield Option(words=("--shm-size", str(shm)), host={"shm_size": shm})
    # OpenMP and data loaders overflow the usual 8 MiB of stack; NCCL and RDMA pin memory. Gloo
    # pins none, and an engine that may not raise that limit (rootless, nested) starts nothing.
    pins = accelerator == "cuda" or resources.rdma
    limits = (*((("memlock", -1),) if pins else ()), ("stack", STACK_BYTES))
    yield Option(
        words=_each("--ulimit", [f"{name}={limit}:{limit}" for name, limit in limits]),
        host={"ulimits": [{"name": n, "soft": limit, "hard": limit} for n, limit in limits]},
    )
    if resources.rdma:
        yield Option(
            words=("--device", RDMA_DEVICES, "--cap-add", "CAP_IPC_LOCK"),
            host={"devices": [RDMA_DEVICES], "cap_add": ["CAP_IPC_LOCK"]},
        )


def _log() -> Option:
    # Not the engine's default driver: json-file replaces bytes that are not UTF-8, and what is
    # set engine-wide may rotate or keep nothing.
    options = [f"{key}={value}" for key, value in LOG_OPTIONS]
    return Option(
        words=("--log-driver", "local", *_each("--log-opt", options)),
        host={"log_config": {"type": "local", "config": dict(LOG_OPTIONS)}},
    )


def _name(node: NodePlan) -> Option:
    return Option(
        words=("--name", node.name, "--hostname", node.name),
        config={"name": node.name, "hostname": node.name},
    )


def _own_options(plan: LaunchPlan, node: NodePlan) -> Iterator[Option]:
    """What differs from node to node, or is part of the node's plan."""
    yield _labels(
        (
            (contract.LABEL_NODE_INDEX, str(node.node_index)),
            (contract.LABEL_INCARNATION, str(node.incarnation)),
        )
    )
    if node.device_ids:
        # By id: a count would give every container the same first GPUs.
        ids = list(node.device_ids)
        yield Option(
            words=("--gpus", _csv([f"device={','.join(ids)}"])),
            host={"device_requests": [{"device_ids": ids, "capabilities": [["gpu"]]}]},
        )
    yield _mounts(node.mounts)
    if node.workdir is not None:
        yield Option(words=("--workdir", node.workdir), config={"working_dir": node.workdir})
    # Of two values for one name the last counts; docker's command line would pick at random.
    env = [f"{name}={value}" for name, value in dict(node.env).items()]
    yield Option(
        words=_each("--env", [*env, *node.secrets]), pairs=True, config={"environment": env}
    )


@functools.lru_cache(maxsize=64)
def _mounts(mounts: tuple[Mount, ...]) -> Option:
    # Cached, because all nodes of a plan have the same.
    return Option(
        words=_each("--mount", [_mount_words(mount) for mount in mounts]),
        pairs=True,
        host={
            "mounts": [
                {"Type": "bind", "Source": m.source, "Target": m.target, "ReadOnly": m.read_only}
                for m in mounts
            ]
        },
    )


def _run_labels(plan: LaunchPlan) -> Env:
    return (
        (contract.LABEL_RUN_ID, plan.run_id),
        (contract.LABEL_JOB, plan.job_name),
        (contract.LABEL_RUN_DIR, plan.run_dir),
    )


def _labels(labels: Env) -> Option:
    words = _each("--label", [f"{key}={value}" for key, value in labels])
    return Option(words=words, pairs=True, config={"labels": dict(labels)})


def _joined(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key not in joined:
                joined[key] = value
            elif isinstance(value, dict):
                joined[key] = {**joined[key], **value}
            else:
                joined[key] = [*joined[key], *value]
    return joined


def _each(flag: str, values: list[str]) -> Words:
    return tuple(word for value in values for word in (flag, value))


def _mount_words(mount: Mount) -> str:
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    return _csv([*fields, "readonly"] if mount.read_only else fields)


def _csv(fields: list[str]) -> str:
    """Fields as --mount and --gpus read them: one line of CSV, a comma inside a field quoted."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
