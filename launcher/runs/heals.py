"""How often the workers went on in another group of nodes, without a start, and what it cost. Pure.

Read from the agents' ledgers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.runs.ledger import LedgerEvent

HEALED = "healed: "
"""What the launcher's line of a loss begins with after which the workers went on."""
JOINED = "joined"


@dataclass(frozen=True, kw_only=True)
class Heal:
    """The workers went on among ``num_nodes`` nodes, and ended their first step there at ``at``.

    ``cause``: lost, left, fault, first (the coordinator was gone) or joined. ``paused_s``: the
    longest pause of a worker, from when it knew of the change to the end of that step. ``what``
    names the nodes that were lost, as far as that is known.
    """

    at: float
    cause: str
    step: int
    num_nodes: int
    paused_s: float
    what: str

    def __str__(self) -> str:
        nodes = "1 node" if self.num_nodes == 1 else f"{self.num_nodes} nodes"
        return f"{self.what}; {nodes} went on with step {self.step} after {self.paused_s:.2f} s"


def find_heals(events: Iterable[LedgerEvent]) -> tuple[Heal, ...]:
    """Heals and joins, oldest first, from the events of all agents."""
    since: dict[tuple[int, int], list[LedgerEvent]] = defaultdict(list)
    last: dict[tuple[int, int], LedgerEvent] = {}
    by_step: dict[object, list[tuple[LedgerEvent, Sequence[LedgerEvent]]]] = defaultdict(list)
    members = set[tuple[int, int]]()
    for event in sorted(events, key=lambda each: each.at):
        agent = (event.node_index, event.incarnation)
        last[agent] = event
        if event.name in ("node-lost", "store-lost", "met-again"):
            since[agent].append(event)
        elif event.name == "workers-started":
            members.add(agent)
            since[agent] = []  # it has met the others for workers that start
        elif event.name == "healed" and any(each.name == "met-again" for each in since[agent]):
            key = (event.values.get("generation"), event.values.get("step"))
            by_step[key].append((event, since.pop(agent)))
    gone = {
        (event.at, agent[0])
        for agent, event in last.items()
        if agent in members and event.values.get("cause") != "completed"
    }
    heals: list[Heal] = []
    for group in by_step.values():
        losses = [each.at for _, since in group for each in since if not _is_join(each)]
        # Each agent writes at each heal: who was silent by then was lost before it.
        silent = {lost for lost in gone if lost[0] < min(losses, default=0.0)}
        gone -= silent
        heals.append(_describe(group, sorted({node for _, node in silent})))
    return tuple(heals)


def _is_join(event: LedgerEvent) -> bool:
    return event.name == "met-again" and event.values["cause"] == JOINED


def _describe(
    group: Sequence[tuple[LedgerEvent, Sequence[LedgerEvent]]], silent: Sequence[int]
) -> Heal:
    """``group``: what each agent wrote when it healed, and since its last heal."""
    healed, events = max(group, key=lambda agent: len(agent[1]))
    met = [each.values for each in events if each.name == "met-again"]
    cause = next((values["cause"] for values in met if values["cause"] != JOINED), JOINED)
    nodes = ", ".join(f"node {index}" for index in silent)
    with_it = f", and {nodes} with it" if nodes else ""
    details = [
        each.values["detail"] + with_it * (each.name == "store-lost")
        for each in events
        if each.name != "met-again"
    ]
    return Heal(
        at=max(event.at for event, _ in group),
        cause=cause,
        step=healed.values["step"],
        num_nodes=met[-1]["world_size"],
        paused_s=round(max(event.values["paused_s"] for event, _ in group), 3),
        what="; ".join(details) or _WORDS.get(cause, "{} was lost").format(nodes or "a node"),
    )


_WORDS = {JOINED: "a node joined", "left": "{} left", "fault": "a worker failed"}


def find_survived(events: Iterable[LedgerEvent], *, has_failed: bool) -> frozenset[str]:
    """What agents said of losses after which their workers made a step, started anew or not.

    A run that has not failed has survived as well what its workers were started anew after: a
    script may tell no steps. In one that has, such a loss may still be why they failed.
    """
    ways_on = {"healed", "first-step"} | (set() if has_failed else {"workers-started"})
    survived, open_losses = set[str](), defaultdict[tuple[int, int], set[str]](set)
    for event in events:
        agent = (event.node_index, event.incarnation)
        if event.name in ("node-lost", "store-lost"):
            open_losses[agent].add(str(event.values.get("detail")))
        elif event.name in ways_on:
            survived |= open_losses.pop(agent, set())
    return frozenset(survived.difference(*open_losses.values()))


def tell_heals(heals: Iterable[Heal]) -> Mapping[str, str]:
    """How often the training healed and nodes joined, with the longest pause, under these words."""
    pauses: dict[str, list[float]] = defaultdict(list)
    for heal in heals:
        pauses["joined" if heal.cause == JOINED else "healed"].append(heal.paused_s)
    return {name: _WHAT[name] + _tell_pauses(pauses_s) for name, pauses_s in sorted(pauses.items())}


_WHAT = {"healed": "without a restart ", "joined": "by newcomers "}


def _tell_pauses(pauses_s: Sequence[float]) -> str:
    often, most = (f"{len(pauses_s)} times", " at most") if len(pauses_s) > 1 else ("once", "")
    return f"{often}, paused {max(pauses_s):.2f} s{most}"
