"""When the store is lost, the run continues: which store is next, and how often that may happen.

Imports torch only inside ``_look``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from launcher.agent.addresses import LOOPBACK
from launcher.contract.agent_settings import ROSTER, NodeTask, StoreEndpoint
from launcher.contract.clock import Clock
from launcher.contract.node_plan import Elastic, Static
from launcher.contract.reasons import Reason

CONNECT_LIMIT_S = 15.0
"""How long to wait for the next candidate, whose agent runs already and lost the store too."""
LAST_CALL_S = 5
"""For c10d, whose default of 30 s is meant for a first start. The roster has its own rule."""
LOOK_LIMIT_S = 1.0
LOOK_PAUSE_S = 0.5
RETURN_LIMIT_S = 10.0
"""How long, after the detection limit, a node that came back looks for the others' new store."""


def plan_round(task: NodeTask, number: int, carried: Mapping[str, str]) -> NodeTask:
    """The task with the store that comes ``number`` places after the first.

    ``carried`` is what a new store must be told of the last one. Every node computes the same store
    from the same number.
    """
    rendezvous = task.node.rendezvous
    if (number == 0 and not carried) or isinstance(rendezvous, Static):
        return task
    conf = dict(rendezvous.conf)
    if rendezvous.backend == ROSTER:
        # A new store knows nothing of the run, so the id can stay, which newcomers know.
        run_id = rendezvous.id
        limit_s = min(CONNECT_LIMIT_S, float(conf.get("connect_timeout_s", CONNECT_LIMIT_S)))
        conf |= {"connect_timeout_s": f"{limit_s:g}"}
    else:
        # A failed agent closes the run id for ever.
        run_id = f"{rendezvous.id}.s{number}"
        if rendezvous.backend == "c10d":
            conf.setdefault("last_call_timeout", str(LAST_CALL_S))
    new = replace(rendezvous, id=run_id, conf=tuple({**conf, **carried}.items()))
    if stores := task.settings.stores:
        store = stores[number % len(stores)]
        is_host = store.node_index == task.node.node_index
        new = replace(new, endpoint_host=store.host, endpoint_port=store.port, is_host=is_host)
    return replace(task, node=replace(task.node, rendezvous=new))


def plan_alone(task: NodeTask) -> NodeTask:
    """The task of a single node whose plan names no address: it takes any free port."""
    rendezvous = task.node.rendezvous
    if isinstance(rendezvous, Static):
        return task
    new = replace(rendezvous, endpoint_host=LOOPBACK, endpoint_port=0, is_host=True)
    return replace(task, node=replace(task.node, rendezvous=new))


def may_go_on(task: NodeTask, reason: Reason, losses_at: Sequence[float], *, fenced: bool) -> bool:
    """Whether another store may be tried after losses at these times, the present one last.

    Only losses of the last ``outer_limit_s`` seconds count: a run of many days may have many.
    """
    settings = task.settings
    if isinstance(task.node.rendezvous, Static) or reason is Reason.PREEMPTED:
        return False
    recent = [at for at in losses_at if losses_at[-1] - at <= settings.outer_limit_s]
    if len(recent) > settings.outer_limit:
        return False
    if reason is Reason.STORE_LOST:
        return True
    if settings.meet_dir:
        # Any node serves a store where none answers, so only other nodes can be missing.
        return fenced
    elsewhere = len(settings.stores) > 1
    return elsewhere and (fenced or reason is Reason.RENDEZVOUS_UNREACHABLE)


def find_round(task: NodeTask, number: int, clock: Clock, *, patient: bool) -> int:
    """The number of the store that serves the run already; ``number`` where none does.

    Otherwise a node that came back would start a second group next to the first. ``patient``: the
    others may not be there yet, so look several times. Blocks meanwhile.
    """
    rendezvous, stores = task.node.rendezvous, task.settings.stores
    if not isinstance(rendezvous, Elastic) or rendezvous.backend != ROSTER or len(stores) < 2:
        return number
    limit_s = float(dict(rendezvous.conf).get("detection_limit_s", 10.0)) + RETURN_LIMIT_S
    end = clock.monotonic() + (limit_s if patient else 0.0)
    # Not the store that was just lost: it may be frozen, and would use up the time.
    lost = (number - 1) % len(stores) if number else None
    order = [(number + turn) % len(stores) for turn in range(len(stores))]
    places = [index for index in order if index != lost or patient]
    while (found := _look(stores, places, rendezvous.id)) is None:
        if clock.monotonic() >= end:
            return number
        clock.sleep(LOOK_PAUSE_S)
    return found


def _look(stores: Sequence[StoreEndpoint], places: Sequence[int], run_id: str) -> int | None:
    from launcher.agent.roster.store import Endpoint, find_store

    endpoints = [Endpoint(host=stores[at].host, port=stores[at].port) for at in places]
    found = find_store(endpoints, run_id, LOOK_LIMIT_S)
    return None if found is None else places[endpoints.index(found)]
