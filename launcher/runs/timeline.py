"""The agents' ledgers as a story: events in words, and seconds by phase. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.contract.errors import name_ending
from launcher.runs.folder import POD_SOURCE

Event = Mapping[str, Any]
"""One line of an agent's ledger; its keys are in ``contract``."""

PHASES = ("starting", "rendezvous", "running")
_PHASE_FROM = {
    "agent-started": "starting",
    "rendezvous-began": "rendezvous",
    "rendezvous-ended": "starting",
    "first-step": "running",
    "store-lost": "starting",
    "agent-ended": None,
}
"""What each event begins; the time before the first step counts as starting."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One event of one node; ``after_s`` is counted from the run's submission."""

    after_s: float
    node_index: int
    incarnation: int
    text: str


def tell_timeline(events: Iterable[Event], submitted_at: float) -> tuple[Moment, ...]:
    """All nodes' events by the nodes' own clocks, oldest first."""
    found = (
        Moment(
            after_s=round(event["at"] - submitted_at, 3),
            node_index=event["node_index"],
            incarnation=event["incarnation"],
            text=text,
        )
        for event in events
        if (text := tell_event(event))
    )
    return tuple(sorted(found, key=lambda moment: moment.after_s))


def tell_event(event: Event) -> str:
    """One event in words; empty for what only divides phases. An unknown one has its name."""
    name = str(event["event"])
    tell = _WORDS.get(name)
    if tell is None:
        return name
    try:
        return tell(event)
    except (KeyError, TypeError, ValueError):
        return name


def _tell_worker_end(event: Event) -> str:
    how = name_ending(event["exit_code"])
    cause = event["cause"]
    return f"rank {event['rank']} ended: {how}" + (
        "" if cause in ("exit", "signal") else f" ({cause})"
    )


def _tell_start(event: Event) -> str:
    ranks = event["ranks"]
    named = ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(str(rank) for rank in ranks)
    return f"workers started (attempt {event['attempt']}, {named})"


def _tell_hang(event: Event) -> str:
    told = f"silent for {event['silent_s']:.1f} s, limit {event['limit_s']:.1f} s"
    # An older agent's has no more than that.
    if "cpu_share" in event:
        first, second = event["read_at"]
        told += (
            f"; beat {event['beat']} twice in {second - first:.1f} s"
            f", {event['cpu_share']:.1%} of a core"
        )
    return f"rank {event['rank']} hangs: {told}"


_WORDS: Mapping[str, Callable[[Event], str]] = {
    "agent-started": lambda e: "agent started",
    "rendezvous-began": lambda e: "",
    "rendezvous-ended": lambda e: (
        f"rendezvous: node rank {e['rank']}, world of {e['world_size']} node"
        + ("" if e["world_size"] == 1 else "s")
    ),
    "workers-started": _tell_start,
    "first-step": lambda e: "first step",
    "worker-ended": _tell_worker_end,
    "hang": _tell_hang,
    "disk-wait": lambda e: f"waited {e['waited_s']:.1f} s for room on a full disk",
    "gpu-wait": lambda e: f"waited {e['waited_s']:.1f} s for GPU memory",
    "restart": lambda e: f"restart: {e['cause']}",
    "stop-requested": lambda e: f"stop requested: {e['reason']}",
    "stop-acknowledged": lambda e: f"stop acknowledged at step {e['step']}",
    "store-lost": lambda e: "store lost, starting again",
    "agent-ended": lambda e: f"agent ended: {e['reason']}, exit code {e['exit_code']}",
    POD_SOURCE: lambda e: str(e["text"]),
}


def measure_phases(
    events: Sequence[Event], *, steps_seen: bool, now: float | None
) -> dict[str, float]:
    """Seconds that one incarnation's agent spent in each phase.

    ``steps_seen``: whether any worker of the run told its steps; where none did, workers count
    as running from their start. ``now`` (seconds since the epoch) closes the last phase of a
    node that still runs; None where it is over, and then a node that was killed is counted up
    to its last event.
    """
    begins = dict(_PHASE_FROM) if steps_seen else {**_PHASE_FROM, "workers-started": "running"}
    spent: Counter[str] = Counter()
    phase: str | None = None
    since_s = last_at = 0.0
    for event in events:
        at_s, last_at = float(event["monotonic_s"]), float(event["at"])
        if phase is not None:
            spent[phase] += at_s - since_s  # type: ignore[assignment]
        phase, since_s = begins.get(str(event["event"]), phase), at_s
    if phase is not None and now is not None:
        spent[phase] += max(0.0, now - last_at)  # type: ignore[assignment]
    return {name: round(spent[name], 3) for name in PHASES if name in spent}
