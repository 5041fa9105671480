"""The handler's configuration: every key of ``rdzv_conf``, its meaning and its default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from launcher.agent.roster.words import Rules
from launcher.contract import protocol

FOREIGN_KEYS = frozenset({"timeout", "rank", "read_timeout"})
"""What torch's ``LaunchConfig`` and torchrun put beside ours."""


@dataclass(frozen=True, kw_only=True)
class RosterSettings:
    """The keys of ``rdzv_conf``; durations in seconds.

    None of them is about wall clocks: each node judges by its own monotonic clock.
    """

    node_index: int
    """This node's place in the plan, from 0; ranks follow it. Default: LAUNCHER_NODE_INDEX."""
    is_host: bool = False
    """Whether this node serves the store if nobody has started it at the endpoint."""
    detection_limit_s: float = 10.0
    """A node silent for so long is lost. 1 s is for quiet machines only."""
    last_call_s: float = 2.0
    """In the first round, how long the group waits for more than MIN nodes after the last came."""
    join_timeout_s: float = 600.0
    """How long a forming round may take; waiting beside a running group does not count."""
    regroup_limit_s: float = 60.0
    """How long a later round waits for a living member whose workers are slow to stop."""
    connect_timeout_s: float = 60.0
    """How long the store may take to answer at first."""
    silence_limit_s: float = 0.0
    """A store silent for so long is gone. Default: the detection limit, at least 2 s."""
    growth_pause_s: float = 10.0
    """The least time between two admissions of newcomers."""
    hold_newcomers: bool = False
    """Newcomers wait until ``admit()`` is called on some node: after a commit."""
    admit_limit_s: float = 120.0
    """With ``hold_newcomers``, how long at most."""
    watched: int = 2
    """How many successors each node watches."""
    max_restarts: int = -1
    """Restarts by worker faults that the whole job may have; negative: any number."""
    fence_dir: str = ""
    """The checkpoint folder, if all nodes share it; else a strict majority has to re-form."""
    nodes_before: int = 0
    """Size of the last membership under an earlier store: shortens the last call, and without
    ``fence_dir`` more than half of them have to come."""
    faults_before: int = 0
    """Restarts by worker faults under earlier stores."""
    generation_before: int = 0
    """The last generation under an earlier store; counts only without ``fence_dir``."""
    finished_before: int = 0
    """Nodes that had finished under an earlier store: they do not come back."""
    host: str = field(default="0.0.0.0")
    """With ``is_host``, the address to listen on."""

    @property
    def interval_s(self) -> float:
        """Between two beats: short enough that detection ends within a second of its limit."""
        return min(0.25, max(0.05, self.detection_limit_s / 10))

    @property
    def silence_s(self) -> float:
        return self.silence_limit_s or max(2.0, self.detection_limit_s)

    @property
    def fence_path(self) -> Path | None:
        return Path(self.fence_dir) if self.fence_dir else None

    def rules(self, min_nodes: int, max_nodes: int) -> Rules:
        """What of this the pure machine needs."""
        return Rules(
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            detection_limit_s=self.detection_limit_s,
            interval_s=self.interval_s,
            last_call_s=self.last_call_s,
            join_timeout_s=self.join_timeout_s,
            regroup_limit_s=self.regroup_limit_s,
            growth_pause_s=self.growth_pause_s,
            admit_limit_s=self.admit_limit_s,
            held=self.hold_newcomers,
            width=self.watched,
            fenced=bool(self.fence_dir),
            max_restarts=self.max_restarts if self.max_restarts >= 0 else None,
            nodes_before=self.nodes_before,
            faults_before=self.faults_before,
            generation_before=self.generation_before,
            finished_before=self.finished_before,
        )


def parse_settings(
    config: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> RosterSettings:
    """Settings from text or typed values; raises ``ValueError`` naming all that is wrong."""
    known = {f.name: f for f in fields(RosterSettings)}
    problems = [
        f"{key}: no such key; known are {', '.join(known)}"
        for key in sorted(set(config) - set(known) - FOREIGN_KEYS)
    ]
    values: dict[str, Any] = {}
    given = {contract_key: v for contract_key, v in config.items() if contract_key in known}
    if "node_index" not in given and protocol.NODE_INDEX in environ:
        given["node_index"] = environ[protocol.NODE_INDEX]
    if "node_index" not in given:
        problems.append(f"node_index: missing, and {protocol.NODE_INDEX} is not set")
    for key, value in given.items():
        try:
            values[key] = _parse(value, str(known[key].type))
        except ValueError:
            problems.append(f"{key}={value!r}: not a valid {known[key].type}")
    problems += _out_of_range(values)
    if problems:
        raise ValueError("rdzv_conf of the backend roster: " + "; ".join(problems))
    return RosterSettings(**values)


def _parse(value: Any, kind: str) -> Any:
    if kind == "bool":
        text = str(value).lower()
        if text in ("1", "true", "t", "yes", "y"):
            return True
        if text in ("0", "false", "f", "no", "n"):
            return False
        raise ValueError(text)
    return {"int": int, "float": float, "str": str}[kind](value)


def _out_of_range(values: Mapping[str, Any]) -> list[str]:
    """Durations that cannot work."""
    problems = []
    if values.get("node_index", 0) < 0:
        problems.append("node_index: starts at 0")
    if not values.get("detection_limit_s", 10.0) >= 0.5:
        problems.append("detection_limit_s: at least 0.5")
    if values.get("watched", 1) < 1:
        problems.append("watched: at least 1")
    for key in ("last_call_s", "join_timeout_s", "regroup_limit_s", "connect_timeout_s"):
        if not values.get(key, 1.0) >= 0.0:
            problems.append(f"{key}: found {values[key]:g}; accepted: 0 or more")
    return problems
