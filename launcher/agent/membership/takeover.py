"""The candidates that a plan names: the next node coordinates the run when one is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from launcher.agent.membership.meeting import carry_conf
from launcher.agent.membership.process import Endpoint, find_coordinator
from launcher.contract.agent_settings import DETECTION_LIMIT_S, NodeTask
from launcher.contract.clock import Clock
from launcher.contract.node_plan import Static

LOOK_LIMIT_S = 1.0
RETURN_LIMIT_S = 10.0
"""How long, after the detection limit, a node that came back looks for that of the others."""


class Candidates:
    """Those at the addresses of the plan, one after the other: every node counts them alike."""

    has_answered = False
    """Whether the one that was planned last has answered this node."""

    def __init__(self, task: NodeTask, clock: Clock, token: str = "") -> None:
        self._task, self._clock, self._token, self._number = task, clock, token, 0

    def plan_round(self, carried: Mapping[str, str], *, elsewhere: bool) -> NodeTask:
        """The task with the next coordinator, or the one that the others use already. Blocks.

        ``carried`` is what it must be told of the last one. ``elsewhere``: the others may
        go on around one that this node does not know yet.
        """
        number = self._find_number(patient=elsewhere)
        self._number = number + 1
        return plan_candidate(self._task, number, carried)

    def _find_number(self, *, patient: bool) -> int:
        """The number of the coordinator that serves the run already; the next one where none does.

        Otherwise a node that came back would start a second group next to the first. ``patient``:
        the others may not be there yet, so look several times.
        """
        number, stores = self._number, self._task.settings.stores
        rendezvous = self._task.node.rendezvous
        if isinstance(rendezvous, Static) or len(stores) < 2:
            return number
        detection_s = float(dict(rendezvous.conf).get("detection_limit_s", DETECTION_LIMIT_S))
        end = self._clock.monotonic() + (detection_s + RETURN_LIMIT_S if patient else 0.0)
        # Not the one that was just lost: it may be frozen, and would use up the time.
        lost = (number - 1) % len(stores) if number else None
        order = [(number + turn) % len(stores) for turn in range(len(stores))]
        places = [index for index in order if index != lost or patient]
        endpoints = [Endpoint(host=stores[at].host, port=stores[at].port) for at in places]
        look = partial(find_coordinator, endpoints, rendezvous.id, LOOK_LIMIT_S, self._token)
        while (found := look()) is None:
            if self._clock.monotonic() >= end:
                return number
            self._clock.sleep(0.5)
        return places[endpoints.index(found)]


def plan_candidate(task: NodeTask, number: int, carried: Mapping[str, str]) -> NodeTask:
    """The task with the coordinator that comes ``number`` places after the first. Pure."""
    rendezvous, stores = task.node.rendezvous, task.settings.stores
    if (number == 0 and not carried) or isinstance(rendezvous, Static):
        return task
    # A new coordinator knows nothing of the run, so the id can stay, which newcomers know.
    new = replace(rendezvous, conf=carry_conf(rendezvous.conf, carried))
    if stores:
        store = stores[number % len(stores)]
        is_host = store.node_index == task.node.node_index
        new = replace(new, endpoint_host=store.host, endpoint_port=store.port, is_host=is_host)
    return replace(task, node=replace(task.node, rendezvous=new))
