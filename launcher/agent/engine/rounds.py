"""When a store is lost, goes on with the next: how often, and with what state. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.distributed.elastic.multiprocessing import SignalException

from launcher.agent.disk import is_full
from launcher.agent.endings import may_meet_again
from launcher.agent.engine.node_state import Node
from launcher.agent.membership.candidates import Candidates, Meeting, UnreachableError
from launcher.agent.membership.group import FENCED_OUT
from launcher.agent.membership.process import UnservedError
from launcher.contract.agent_settings import NodeTask
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending
from launcher.contract.errors import name_signal


def run_rounds(
    task: NodeTask, node: Node, clock: Clock, run_once: Callable[[NodeTask], Ending]
) -> Ending:
    """Runs the workers around one store after the other, in this process: torch stays imported.

    ``run_once`` blocks until the workers are done or the store is gone.
    """
    try:
        return _run_rounds(task, node, clock, run_once)
    except SignalException as error:  # torch's handler is heard between two stores too
        return Ending(cause=Cause.PREEMPTED, detail=f"the agent got {name_signal(error.sigval)}")


def _run_rounds(
    task: NodeTask, node: Node, clock: Clock, run_once: Callable[[NodeTask], Ending]
) -> Ending:
    meets = bool(task.settings.meet_dir) and task.node.max_nodes > 1
    stores = (Meeting if meets else Candidates)(task, clock, node.token)
    carried, losses_at = dict[str, str](), list[float]()
    # The group of a node that was here before may have moved to another store.
    elsewhere = task.node.incarnation > 0 or node.attempts.number >= 0
    while True:
        try:
            planned = stores.plan_round(carried, elsewhere=elsewhere)
        except (UnreachableError, UnservedError, OSError) as error:
            cause = Cause.DISK_FULL if is_full(error) else Cause.RENDEZVOUS_UNREACHABLE
            return Ending(cause=cause, detail=str(error))
        node.reached_store = meets
        end = run_once(planned)
        elsewhere = node.roster is not None and node.roster.status.closed == FENCED_OUT
        losses_at.append(clock.monotonic())
        if not may_meet_again(task, end.cause, losses_at, fenced=elsewhere):
            return end
        if elsewhere:
            end = replace(end, detail="the job goes on around another store")
        carried |= node.roster.carried() if node.roster else {}
        node.on_store_lost(end, len(losses_at))
