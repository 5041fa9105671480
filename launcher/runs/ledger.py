"""The run's ledger: events that agents, training and clusters recorded; restarts by cause, clocks
of nodes, and how long a node may be silent.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.agent.ledger import ledger_path
from launcher.contract import protocol
from launcher.contract.causes import with_cause
from launcher.contract.records import parse_object
from launcher.contract.reports.vitals import Vitals
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.heals import Heal, find_heals


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEvent:
    """One line of a ledger, as in ``contract.protocol``; ``values`` is the whole line.

    ``at`` is seconds since the epoch, ``monotonic_s`` the node's monotonic clock.
    """

    name: str
    node_index: int
    incarnation: int
    at: float
    monotonic_s: float
    values: Mapping[str, Any]


LAUNCHER_LEDGER = "pods.jsonl"
"""The launchers' part: what they saw of nodes on any target, or read on nodes' consoles. ``source``
and ``event`` are LAUNCHER_SOURCE, ``text`` is a sentence."""
LAUNCHER_SOURCE = "cluster"
SILENT_S = 3 * protocol.VITALS_S
"""A running node without vitals for this long counts as a node with trouble."""
JUMP_S = 5.0
"""A wall clock that moved this much against the monotonic one has jumped."""
_RESTART_SAID = re.compile(r"agent: (restart \d+ of .*)", re.DOTALL)
_NUMBERS = ("node_index", "incarnation", "at", "monotonic_s")


def parse_event(line: str, source: str) -> LedgerEvent | None:
    """Reads a line; None if it is of another source, or has no place, name or time."""
    try:
        data = parse_object(line)
    except ValueError:
        # Its writer was killed while it wrote.
        return None
    if data.get("source") != source:
        return None
    name = data.get("event")
    data = with_cause(data) if name == "agent-ended" else data
    numbers: Mapping[str, Any] = {key: data.get(key) for key in _NUMBERS}
    if not isinstance(name, str) or not all(isinstance(n, int | float) for n in numbers.values()):
        return None
    # All lines have the same keys: unshared, these take half the memory of a long run's events.
    values = {sys.intern(key): value for key, value in data.items()}
    return LedgerEvent(name=name, values=values, **numbers)


def read_ledger(path: Path, source: str = "agent") -> tuple[LedgerEvent, ...]:
    """The source's events in one file, oldest first; empty if there is no such file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(event for line in lines if (event := parse_event(line, source)))


def tell_moment(
    run: RunFolder, node_index: int, incarnation: int, *, at: float, text: str, key: str = ""
) -> None:
    """Adds a sentence about a node to the timeline; ``key`` sets it apart from the node's others.

    A write that fails does not end the run.
    """
    event = {
        "schema": protocol.LEDGER_SCHEMA,
        "source": LAUNCHER_SOURCE,
        "node_index": node_index,
        "incarnation": incarnation,
        "event": LAUNCHER_SOURCE,
        "at": at,
        "monotonic_s": at,
        "key": key,
        "text": text,
    }
    path = moments_file(run)
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")


def moments_file(run: RunFolder) -> Path:
    """Where the launchers' part of the ledger lies, if they wrote any."""
    return run.path / protocol.LEDGER_DIR / LAUNCHER_LEDGER


def read_moments(run: RunFolder) -> tuple[LedgerEvent, ...]:
    """What launchers told of the run's nodes by ``tell_moment``."""
    return read_ledger(moments_file(run), LAUNCHER_SOURCE)


def agent_ledger(run: RunFolder, node_index: int, incarnation: int) -> Path:
    """Where an agent's part of the ledger lies, if it wrote any."""
    return ledger_path(run.path, node_index, incarnation)


def tell_restarts(events: Iterable[LedgerEvent]) -> dict[object, str]:
    """Restarts by a worker's fault, in the words of the first agent that saw it; each with a key.

    Of an agent whose ledger does not come here, the launcher has what it said on its console. Where
    workers of many nodes hang, each of these says so. Pure.
    """
    told = dict[object, str]()
    for event in sorted(events, key=lambda each: each.at):
        text = str(event.values.get("detail", "")) if event.name == "restart" else ""
        if event.name == LAUNCHER_SOURCE:
            said = _RESTART_SAID.fullmatch(str(event.values.get("text")))
            text = said[1] if said else ""
        if text:
            # Its number begins again where the launcher starts all nodes again.
            told.setdefault((event.incarnation, text.partition(" (")[0]), text)
    return told


def read_train_ledger(run: RunFolder) -> tuple[LedgerEvent, ...]:
    """The training's events, in no order; empty if the training writes none."""
    pattern = protocol.TRAIN_LEDGER.format(node_index="*", incarnation="*", attempt="*", rank=0)
    paths = sorted((run.path / protocol.LEDGER_DIR).glob(pattern))
    return tuple(event for path in paths for event in read_ledger(path, "train"))


def count_restarts(events: Iterable[LedgerEvent]) -> Counter[str]:
    """By cause, the restarts of one agent after which its workers did start again. Pure."""
    restarts: Counter[str] = Counter()
    cause: str | None = None
    has_started = False
    for event in events:
        if event.name == "restart":
            cause = str(event.values.get("cause"))
        elif event.name == "workers-started":
            if cause is not None and has_started:
                restarts[cause] += 1
            cause, has_started = None, True
    return restarts


def read_agents(run: RunFolder) -> tuple[LedgerEvent, ...]:
    """The events of all agents, one agent after the other."""
    ledgers = (read_ledger(agent_ledger(run, *node)) for node in run.incarnations())
    return tuple(event for events in ledgers for event in events)


def read_heals(run: RunFolder, plan: LaunchPlan) -> tuple[Heal, ...]:
    """Heals and joins, oldest first, by the launcher's clock."""
    return find_heals(by_launchers_clock(read_agents(run), clock_offsets(plan)))


def read_restarts(run: RunFolder) -> dict[str, int]:
    """Restarts of workers by cause, over all nodes and all their incarnations.

    Read from each ledger, as a killed agent writes no outcome; without a ledger, from the outcome.
    """
    total: Counter[str] = Counter()
    for node in run.incarnations():
        if events := read_ledger(agent_ledger(run, *node)):
            total.update(count_restarts(events))
        elif outcome := run.read_node_outcome(*node):
            total.update(outcome.restarts)
    return dict(sorted(total.items()))


def find_jump(events: Sequence[LedgerEvent]) -> float:
    """How far a process' wall clock moved against its monotonic one; 0 if it did not. Pure."""
    offsets = [event.at - event.monotonic_s for event in events if event.name != "worker-ended"]
    steps = [b - a for a, b in pairwise(offsets)]
    return next((step for step in steps if abs(step) > JUMP_S), 0.0)


def clock_offsets(plan: LaunchPlan) -> dict[int, float]:
    """Each node's wall clock less the launcher's, in seconds, as measured before the run. Pure."""
    return {index: machine.clock_offset_s for index, machine in enumerate(plan.machines)}


def measure_silence(plan: LaunchPlan, node_index: int, vitals: Vitals, now: float) -> float:
    """How many seconds ago a node wrote its vitals; ``now`` is of the launcher's clock. Pure."""
    offset_s = clock_offsets(plan).get(node_index, 0.0)
    return max(0.0, round(now - vitals.at + offset_s, 1))


def by_launchers_clock(
    events: Iterable[LedgerEvent], offsets: Mapping[int, float]
) -> tuple[LedgerEvent, ...]:
    """The same events with times of the launcher's clock. Pure."""
    return tuple(
        replace(event, at=event.at - offset) if (offset := offsets.get(event.node_index)) else event
        for event in events
    )
