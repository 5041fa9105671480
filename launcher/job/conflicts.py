"""Keys of a job file that are right alone and wrong together.

Reads unchecked data, so that one wrong key hides no conflict of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.job.values import (
    NodeRange,
    RefusedError,
    parse_mount_target,
    parse_nodes,
    split_mount,
)


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Two keys that are right alone and wrong together; ``path`` is the one to change."""

    path: tuple[str | int, ...]
    found: str
    accepted: str
    fix: str


def find_conflicts(raw: Mapping[str, object]) -> tuple[Conflict, ...]:
    """All conflicts of a job file's data, or of a JobSpec's own dump."""
    of_all = (_engine, _hangs, _rendezvous, _processes, _secrets, _mounts, _kubernetes)
    return tuple(conflict for find in of_all for conflict in find(raw))


def _section(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(raw: Mapping[str, object], key: str) -> list[object]:
    value = raw.get(key)
    return list(value) if isinstance(value, list | tuple) else []


ROSTER_CONF = ("join_timeout", "last_call_timeout", "read_timeout")
"""What of ``rdzv.conf`` the backend ``roster`` knows."""


def _engine(raw: Mapping[str, object]) -> list[Conflict]:
    """What needs the agent, in a job that says ``engine: torchrun``; what roster does not know."""
    rdzv = _section(raw, "rdzv")
    conflicts: list[Conflict] = []
    if raw.get("engine") == "torchrun":
        only: dict[tuple[str | int, ...], object] = {("start",): raw.get("start")}
        if rdzv.get("backend") == "roster":
            only["rdzv", "backend"] = "roster"
        accepted = "nothing that only the agent has, because engine is torchrun"
        fix = "remove it, or write engine: agent"
        conflicts += [
            Conflict(path=path, found=str(found), accepted=accepted, fix=fix)
            for path, found in only.items()
            if found is not None
        ]
    if rdzv.get("backend") == "roster" or (rdzv.get("backend") is None and _runs_agent(raw)):
        for key, value in _section(rdzv, "conf").items():
            if value is not None and key not in ROSTER_CONF:
                accepted = "nothing: the agent's rendezvous has other settings, see agent"
                fix = "remove it (agent.detection_limit_s), or write rdzv.backend: c10d"
                place = ("rdzv", "conf", key)
                conflicts.append(Conflict(path=place, found=str(value), accepted=accepted, fix=fix))
    return conflicts


def _runs_agent(raw: Mapping[str, object]) -> bool:
    """As ``JobSpec.uses_agent``, for data that is not checked yet."""
    if raw.get("engine") is not None:
        return raw.get("engine") == "agent"
    nodes, restarts = _nodes(raw), raw.get("max_restarts")
    may_restart = isinstance(restarts, int) and restarts > 0
    return raw.get("start") is not None or may_restart or (nodes is not None and nodes.is_elastic)


def _hangs(raw: Mapping[str, object]) -> list[Conflict]:
    agent = _section(raw, "agent")
    low, high = agent.get("hang_min_s"), agent.get("hang_max_s")
    low, high = 300 if low is None else low, 1800 if high is None else high
    if not isinstance(low, int) or not isinstance(high, int) or low <= high:
        return []
    path = ("agent", "hang_max_s" if agent.get("hang_max_s") is not None else "hang_min_s")
    accepted = f"hang_min_s (now {low}) not above hang_max_s (now {high})"
    fix = f"write agent.{path[1]}: {low if path[1] == 'hang_max_s' else high}"
    return [Conflict(path=path, found=str(agent[path[1]]), accepted=accepted, fix=fix)]


def _rendezvous(raw: Mapping[str, object]) -> list[Conflict]:
    rdzv = _section(raw, "rdzv")
    backend, endpoint = rdzv.get("backend"), rdzv.get("endpoint")
    nodes = _nodes(raw)
    if backend == "etcd-v2":
        return _etcd(rdzv, endpoint, is_shared=nodes is not None and nodes.max > 1)
    conflicts = []
    if backend == "static" and nodes is not None and nodes.is_elastic:
        accepted = f"c10d or etcd-v2, because nnodes is {nodes} and a static group keeps its size"
        fix = f"remove the key, or write nnodes: {nodes.max}"
        path = ("rdzv", "backend")
        conflicts.append(Conflict(path=path, found="static", accepted=accepted, fix=fix))
    if endpoint is not None and backend in (None, "roster", "static", "c10d"):
        accepted = "nothing, unless rdzv.backend is etcd-v2: else the nodes meet at one of them"
        fix = "remove the key; rdzv.port chooses the port"
        path = ("rdzv", "endpoint")
        conflicts.append(Conflict(path=path, found=str(endpoint), accepted=accepted, fix=fix))
    return conflicts


def _etcd(rdzv: Mapping[str, object], endpoint: object, *, is_shared: bool) -> list[Conflict]:
    accepted = "the address of an etcd server that all nodes reach, with rdzv.backend: etcd-v2"
    fix = "for example rdzv.endpoint: etcd.internal:2379"
    path = ("rdzv", "endpoint")
    if endpoint is None:
        return [Conflict(path=path, found="nothing", accepted=accepted, fix=fix)]
    if is_shared and str(endpoint).startswith(("localhost:", "127.", "[::1]")):
        return [Conflict(path=path, found=str(endpoint), accepted=accepted, fix=fix)]
    if rdzv.get("port") is not None:
        accepted = "nothing, because rdzv.endpoint says the port"
        path, found = ("rdzv", "port"), str(rdzv["port"])
        return [Conflict(path=path, found=found, accepted=accepted, fix="remove the key")]
    return []


def _nodes(raw: Mapping[str, object]) -> NodeRange | None:
    try:
        return parse_nodes(raw.get("nnodes") or 1)
    except RefusedError:
        return None


def _processes(raw: Mapping[str, object]) -> list[Conflict]:
    gpus = _section(raw, "resources").get("gpus")
    if raw.get("nproc_per_node") != "gpu" or gpus != 0 or isinstance(gpus, bool):
        return []
    accepted = "a number or cpu, because resources.gpus is 0"
    fix = "write nproc_per_node: cpu, or ask for GPUs"
    return [Conflict(path=("nproc_per_node",), found="gpu", accepted=accepted, fix=fix)]


def _secrets(raw: Mapping[str, object]) -> list[Conflict]:
    env, seen, conflicts = _section(raw, "env"), set(), []
    for index, name in enumerate(_list(raw, "secrets")):
        if not isinstance(name, str):
            continue
        if name in seen or name in env:
            accepted = "each name once" if name in seen else "a name that is not also under env"
            fix = "remove one of the two"
            conflicts.append(
                Conflict(path=("secrets", index), found=name, accepted=accepted, fix=fix)
            )
        seen.add(name)
    return conflicts


def _mounts(raw: Mapping[str, object]) -> list[Conflict]:
    seen: dict[str, int] = {}
    conflicts = []
    for index, value in enumerate(_list(raw, "mounts")):
        try:
            mount = split_mount(value)
            target = parse_mount_target(str(mount["target"])) if isinstance(mount, dict) else ""
        except (RefusedError, KeyError):
            continue
        if target in seen:
            accepted = f"a target of its own; mounts.{seen[target]} has this one"
            path = ("mounts", index, "target")
            conflicts.append(
                Conflict(path=path, found=target, accepted=accepted, fix="give it another target")
            )
        seen.setdefault(target, index)
    return conflicts


def _kubernetes(raw: Mapping[str, object]) -> list[Conflict]:
    section = _section(raw, "kubernetes")
    gang, queue = section.get("gang"), section.get("queue")
    path = ("kubernetes", "queue")
    if gang == "kueue" and queue is None:
        accepted = "the name of a LocalQueue, because kubernetes.gang is kueue"
        fix = "for example kubernetes.queue: team-a"
        return [Conflict(path=path, found="nothing", accepted=accepted, fix=fix)]
    if gang is None and queue is not None:
        accepted = "nothing, because kubernetes.gang is not set"
        fix = "remove it, or write kubernetes.gang: kueue"
        return [Conflict(path=path, found=str(queue), accepted=accepted, fix=fix)]
    return []
