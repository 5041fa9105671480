"""The agents' ledgers for people: events in words, and seconds by phase. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.contract.errors import name_ending
from launcher.runs.ledger import LAUNCHER_SOURCE, LedgerEvent

PHASES = ("starting", "rendezvous", "running")
_PHASE_FROM = {
    "agent-started": "starting",
    "healed": "running",
    "rendezvous-began": "rendezvous",
    "rendezvous-ended": "starting",
    "first-step": "running",
    "store-lost": "starting",
    "agent-ended": None,
}
"""The phase that each event begins; the time before the first step counts as starting."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One event of a node; ``after_s`` is counted from the submission.

    It is 0 for an event that a slow clock puts earlier. ``kind`` is fault, restart, heal or empty.
    """

    after_s: float
    node_index: int
    incarnation: int
    text: str
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.after_s:9.2f}  {self.node_index}.{self.incarnation}  {self.text}"


_SAID_BY_CODE = ("completed", "script-error", "killed", "crashed", "exit", "signal")
"""Causes of workers whose exit code says it all; the last two are those of older runs."""
_KINDS = {
    **dict.fromkeys(("hang", "node-lost", "store-lost"), "fault"),
    "restart": "restart",
    "healed": "heal",
}


def _kind(event: LedgerEvent) -> str:
    has_failed = event.name == "worker-ended" and event.values.get("exit_code") != 0
    is_fault = has_failed and event.values.get("cause") != "terminated"
    return "fault" if is_fault else _KINDS.get(event.name, "")


def tell_timeline(events: Iterable[LedgerEvent], submitted_at: float) -> tuple[Moment, ...]:
    """All nodes' events, oldest first."""
    moments = (
        Moment(
            after_s=max(0.0, round(event.at - submitted_at, 3)),
            node_index=event.node_index,
            incarnation=event.incarnation,
            text=text,
            kind=_kind(event),
        )
        for event in events
        if (text := tell_event(event.name, event.values))
    )
    return tuple(sorted(moments, key=lambda moment: moment.after_s))


def tell_event(name: str, values: Mapping[str, Any]) -> str:
    """One event in words; the name if it is unknown."""
    words = _WORDS.get(name, name)
    try:
        return words.format(**values) if isinstance(words, str) else words(values)
    except (KeyError, TypeError, ValueError):
        return name


def _tell_rendezvous(values: Mapping[str, Any], why: str = "") -> str:
    nodes = "node" if values["world_size"] == 1 else "nodes"
    return f"rendezvous{why}: node rank {values['rank']}, world of {values['world_size']} {nodes}"


def _tell_met_again(values: Mapping[str, Any]) -> str:
    why = _MET_AGAIN.get(values["cause"], "again")
    return f"{_tell_rendezvous(values, f' {why}')}; its workers stay"


def _tell_worker_end(values: Mapping[str, Any]) -> str:
    cause = "" if values["cause"] in _SAID_BY_CODE else f" ({values['cause']})"
    return f"rank {values['rank']} ended: {name_ending(values['exit_code'])}{cause}"


def _tell_store_lost(values: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, ("store lost", values.get("detail"))))


def _tell_start(values: Mapping[str, Any]) -> str:
    ranks = values["ranks"]
    named = ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(map(str, ranks))
    return f"workers started (attempt {values['attempt']}, {named})"


def _tell_hang(values: Mapping[str, Any]) -> str:
    words = "rank {rank} hangs: silent for {silent_s:.1f} s, limit {limit_s:.1f} s"
    first, second = values["read_at"]
    words += "; beat {beat} twice in {apart_s:.1f} s, {cpu_share:.1%} of a core"
    return words.format(**values, apart_s=second - first)


_MET_AGAIN = {
    "lost": "after a loss",
    "left": "after a node left",
    "fault": "after a failure",
    "first": "around the next store",
    "joined": "with newcomers",
}
_WORDS: Mapping[str, str | Callable[[Mapping[str, Any]], str]] = {
    "agent-started": "agent started",
    "installed": "torch {versions[torch]}, Python {versions[Python]}, code {versions[code]}",
    "rendezvous-began": "rendezvous began",
    "rendezvous-ended": _tell_rendezvous,
    "met-again": _tell_met_again,
    "healed": "goes on with step {step} after a pause of {paused_s:.2f} s",
    "workers-started": _tell_start,
    "first-step": "first step",
    "worker-ended": _tell_worker_end,
    "hang": _tell_hang,
    "gpu-wait": "waited {waited_s:.1f} s for GPU memory",
    "restart": "restart: {cause}",
    "stop-requested": "stop requested: {reason}",
    "stop-acknowledged": "stop acknowledged at step {step}",
    "node-lost": "{detail}",
    "store-lost": _tell_store_lost,
    "agent-ended": "agent ended: {cause}, exit code {exit_code}",
    LAUNCHER_SOURCE: "{text}",
}
"""Formats of an event's values, or functions of them."""


def measure_phases(
    events: Sequence[LedgerEvent], *, steps_seen: bool, now: float | None
) -> dict[str, float]:
    """Seconds that one incarnation's agent spent in each phase.

    ``steps_seen``: whether workers of the run report steps; if not, workers count as running from
    their start. ``now`` (seconds since the epoch) ends the last phase of a node that still runs;
    None for one that has ended, which is counted up to its last event.
    """
    begins = dict(_PHASE_FROM) if steps_seen else {**_PHASE_FROM, "workers-started": "running"}
    spent = dict.fromkeys(PHASES, 0.0)
    phases = set[str]()
    phase: str | None = None
    since_s = last_at = 0.0
    for event in events:
        if phase is not None:
            spent[phase] += event.monotonic_s - since_s
            phases.add(phase)
        phase, since_s, last_at = begins.get(event.name, phase), event.monotonic_s, event.at
    if phase is not None and now is not None:
        spent[phase] += max(0.0, now - last_at)
        phases.add(phase)
    return {name: round(spent[name], 3) for name in PHASES if name in phases}
