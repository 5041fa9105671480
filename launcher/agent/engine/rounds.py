"""When a store is lost, goes on with the next: how often, and with what state. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.distributed.elastic.multiprocessing import SignalException

from launcher.agent.disk import is_full
from launcher.agent.engine.node_state import Node
from launcher.agent.membership.candidates import Candidates, Meeting, UnreachableError
from launcher.agent.membership.group import FENCED_OUT
from launcher.agent.membership.process import UnservedError
from launcher.contract.agent_settings import NodeTask
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock
from launcher.contract.errors import name_signal
from launcher.contract.node_plan import Static

MOST_LOSSES = 3
LOSSES_WITHIN_S = 900.0
"""If more than ``MOST_LOSSES`` stores are lost within this time, no other store is tried."""


def run_rounds(
    task: NodeTask, node: Node, clock: Clock, run_once: Callable[[NodeTask], tuple[Cause, str]]
) -> tuple[Cause, str]:
    """Runs the workers around one store after the other, in this process: torch stays imported.

    ``run_once`` blocks until the workers are done or the store is gone.
    """
    try:
        return _run_rounds(task, node, clock, run_once)
    except SignalException as error:  # torch's handler is heard between two stores too
        return Cause.PREEMPTED, f"the agent got {name_signal(error.sigval)}"


def _run_rounds(
    task: NodeTask, node: Node, clock: Clock, run_once: Callable[[NodeTask], tuple[Cause, str]]
) -> tuple[Cause, str]:
    meets = bool(task.settings.meet_dir) and task.node.max_nodes > 1
    stores = (Meeting if meets else Candidates)(task, clock, node.token)
    carried, losses_at = dict[str, str](), list[float]()
    # The group of a node that was here before may have moved to another store.
    elsewhere = task.node.incarnation > 0 or node.attempts.number >= 0
    while True:
        try:
            planned = stores.plan_round(carried, elsewhere=elsewhere)
        except (UnreachableError, UnservedError, OSError) as error:
            if is_full(error):
                return Cause.DISK_FULL, node.attempts.describe_disk(str(error))
            return Cause.RENDEZVOUS_UNREACHABLE, str(error)
        node.reached_store = meets
        reason, detail = run_once(planned)
        elsewhere = node.roster is not None and node.roster.status.closed == FENCED_OUT
        losses_at.append(clock.monotonic())
        if not may_go_on(task, reason, losses_at, fenced=elsewhere):
            return reason, detail
        if elsewhere:
            detail = "the job goes on around another store"
        carried |= node.roster.carried() if node.roster else {}
        node.on_store_lost(reason, detail, len(losses_at))


def may_go_on(task: NodeTask, reason: Cause, losses_at: Sequence[float], *, fenced: bool) -> bool:
    """Whether another store may be tried after losses at these times, the present one last.

    Only those of the last ``LOSSES_WITHIN_S`` count: a run of many days may have many.
    """
    if isinstance(task.node.rendezvous, Static) or reason is Cause.PREEMPTED:
        return False
    recent = [at for at in losses_at if losses_at[-1] - at <= LOSSES_WITHIN_S]
    if len(recent) > MOST_LOSSES:
        return False
    if reason is Cause.STORE_LOST:
        return True
    if task.settings.meet_dir:
        # Any node serves a store where none answers, so only other nodes can be missing.
        return fenced
    has_others = len(task.settings.stores) > 1
    return has_others and (fenced or reason is Cause.RENDEZVOUS_UNREACHABLE)
