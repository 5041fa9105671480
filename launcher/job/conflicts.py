"""Keys of a job file that are right alone and wrong together, such as engine and rdzv.backend,
hang_min_s and hang_max_s, or a name under env and secrets.

Reads unchecked data, so that a wrong key does not hide conflicts between the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.contract.node_plan import HANG_MAX_S, HANG_MIN_S
from launcher.job.storage import parse_mount_target, split_mount
from launcher.job.values import NodeRange, NotAcceptedError, parse_nodes

Raw = Mapping[str, object]
"""A section's keys as they were written."""

OF_TORCHRUN = ("c10d", "etcd-v2")
"""Backends that only torchrun has."""
CONF_OF_TORCHRUN = (
    *("close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"),
    *("protocol", "ssl_cert", "ssl_cert_key", "ca_cert"),
)
"""Keys of ``rdzv.conf`` that only these backends take."""


@dataclass(frozen=True)
class Conflict:
    """Two keys that are right alone and wrong together; ``path`` is the one to change."""

    path: tuple[str | int, ...]
    given: object
    accepted: str
    fix: str


def find_conflicts(raw: Raw) -> tuple[Conflict, ...]:
    """All conflicts in the data of a job file."""
    of_all = (_engine, _hangs, _rendezvous, _secrets, _mounts, _kubernetes, _notify)
    return tuple(conflict for find in of_all for conflict in find(raw))


def _section(raw: Raw, key: str) -> Raw:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(raw: Raw, key: str) -> list[object]:
    value = raw.get(key)
    return list(value) if isinstance(value, list | tuple) else []


def _nodes(raw: Raw) -> NodeRange | None:
    try:
        return parse_nodes(raw.get("nnodes") or 1)
    except NotAcceptedError:
        return None


def _engine(raw: Raw) -> Iterator[Conflict]:
    """The agent's keys under ``engine: torchrun``, and torchrun's keys under the agent."""
    rdzv = _section(raw, "rdzv")
    backend, start = rdzv.get("backend"), raw.get("start")
    if _is_torchruns_alone(raw):
        fix = "remove rdzv, for the agent's own rendezvous, or write engine: torchrun"
        yield Conflict(("rdzv", "backend"), backend, "roster or static, under the agent", fix)
    elif raw.get("engine") == "torchrun":
        accepted = "the key left out, because engine is torchrun and only the agent has this"
        fix = "remove it, or write engine: agent"
        if start is not None:
            yield Conflict(("start",), start, accepted, fix)
        if backend == "roster":
            yield Conflict(("rdzv", "backend"), backend, accepted, fix)
    else:
        for key, value in _section(rdzv, "conf").items():
            if value is not None and (backend == "static" or key in CONF_OF_TORCHRUN):
                accepted = "join_timeout, last_call_timeout or read_timeout of the agent's roster"
                fix = "remove the key, or write engine: torchrun"
                yield Conflict(("rdzv", "conf", key), value, accepted, fix)


def _is_torchruns_alone(raw: Raw) -> bool:
    """Whether the job asks the agent for a backend that only torchrun has."""
    return raw.get("engine") != "torchrun" and _section(raw, "rdzv").get("backend") in OF_TORCHRUN


def _hangs(raw: Raw) -> Iterator[Conflict]:
    agent = _section(raw, "agent")
    low, high = agent.get("hang_min_s"), agent.get("hang_max_s")
    low = HANG_MIN_S if low is None else low
    if high is None and raw.get("max_restarts"):
        high = HANG_MAX_S
    if isinstance(low, int) and isinstance(high, int) and low > high:
        is_high = agent.get("hang_max_s") is not None
        key, meant = ("hang_max_s", low) if is_high else ("hang_min_s", high)
        accepted = f"hang_min_s (now {low}) not above hang_max_s (now {high})"
        yield Conflict(("agent", key), agent[key], accepted, f"write agent.{key}: {meant}")


def _rendezvous(raw: Raw) -> Iterator[Conflict]:
    rdzv, nodes = _section(raw, "rdzv"), _nodes(raw)
    backend, endpoint = rdzv.get("backend"), rdzv.get("endpoint")
    if _is_torchruns_alone(raw):
        return
    if backend == "etcd-v2" and endpoint is None:
        accepted = "the address of an etcd server that all nodes reach, with rdzv.backend: etcd-v2"
        fix = "for example rdzv.endpoint: etcd.internal:2379"
        yield Conflict(("rdzv", "endpoint"), "nothing", accepted, fix)
    if backend == "static" and nodes is not None and nodes.is_elastic:
        elastic = "c10d or etcd-v2" if raw.get("engine") == "torchrun" else "roster"
        accepted = f"{elastic}, because nnodes is {nodes} and a static group keeps its size"
        fix = f"remove the key, or write nnodes: {nodes.max}"
        yield Conflict(("rdzv", "backend"), backend, accepted, fix)
    if endpoint is not None and backend != "etcd-v2":
        accepted = "the address of an etcd server, with engine: torchrun and rdzv.backend: etcd-v2"
        fix = "remove the key: without etcd the nodes meet at node 0; rdzv.port chooses the port"
        yield Conflict(("rdzv", "endpoint"), endpoint, accepted, fix)


def _secrets(raw: Raw) -> Iterator[Conflict]:
    env = _section(raw, "env")
    for index, name in enumerate(_list(raw, "secrets")):
        if isinstance(name, str) and name in env:
            accepted = "a name that is not also under env"
            yield Conflict(("secrets", index), name, accepted, "remove one of the two")


def _mounts(raw: Raw) -> Iterator[Conflict]:
    mount_of: dict[str, int] = {}
    for index, value in enumerate(_list(raw, "mounts")):
        try:
            mount = split_mount(value)
            target = parse_mount_target(str(mount["target"])) if isinstance(mount, dict) else ""
        except (NotAcceptedError, KeyError):
            continue
        if target in mount_of:
            accepted = f"a target that no other mount has; mounts.{mount_of[target]} has this one"
            fix = f"write another target, such as {target}-2"
            yield Conflict(("mounts", index, "target"), target, accepted, fix)
        mount_of.setdefault(target, index)


def _kubernetes(raw: Raw) -> Iterator[Conflict]:
    section = _section(raw, "kubernetes")
    gang, queue = section.get("gang"), section.get("queue")
    path = ("kubernetes", "queue")
    if gang == "kueue" and queue is None:
        accepted = "the name of a LocalQueue, because kubernetes.gang is kueue"
        yield Conflict(path, "nothing", accepted, "for example kubernetes.queue: team-a")
    elif gang is None and queue is not None:
        accepted = "the key left out, because kubernetes.gang is not set"
        yield Conflict(path, queue, accepted, "remove it, or write kubernetes.gang: kueue")


def _notify(raw: Raw) -> Iterator[Conflict]:
    section = _section(raw, "notify")
    if section and not (section.get("command") or section.get("webhook")):
        accepted = "notify.command or notify.webhook, which gets the notice"
        fix = "for example notify.webhook: https://chat.internal/hooks/team-a"
        yield Conflict(("notify", "command"), "nothing", accepted, fix)
