"""When a store is lost, goes on with the next: how often, and with what state. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.distributed.elastic.multiprocessing import SignalException

from launcher.agent.disk import is_full
from launcher.agent.endings import judge_raised, may_meet_again
from launcher.agent.engine.node_state import Node
from launcher.agent.engine.torch_agent import say_error
from launcher.agent.membership.candidates import Candidates, Meeting
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import FENCED_OUT, NONE
from launcher.contract.agent_settings import NodeTask
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock
from launcher.contract.ending import Ending
from launcher.contract.node_plan import Elastic, Static


class Rounds:
    """The coordinators that this node follows, one after the other."""

    def __init__(self, task: NodeTask, node: Node, clock: Clock) -> None:
        meets = bool(task.settings.meet_dir) and task.node.max_nodes > 1
        is_static = isinstance(task.node.rendezvous, Static)
        kind = Meeting if meets else Candidates
        self._stores = None if is_static else kind(task, clock, node.token)
        node.healer.rounds = self
        self._task, self._node, self._clock, self.meets = task, node, clock, meets
        self._planned, self._losses_at = task, list[float]()
        # The group of a node that was here before may have moved to another store.
        self._is_elsewhere = task.node.incarnation > 0 or node.attempts.number >= 0

    def plan_next(self) -> NodeTask:
        """The task with the coordinator that follows. Blocks; raises ``OSError``."""
        if self._stores:
            self._planned = self._stores.plan_round(elsewhere=self._is_elsewhere)
        return self._planned

    def open_roster(self) -> Client:
        """The node's part in the group around that one. Blocks; raises ``RendezvousError``."""
        plan, before = self._planned.node, self._node.roster
        meets = plan.rendezvous
        assert isinstance(meets, Elastic)
        assert self._stores
        roster = Client(
            meets.endpoint_host,
            meets.endpoint_port,
            meets.id,
            self._stores.rules,
            token=self._node.token,
            last=before.last if before else NONE,
            addr=plan.local_addr,
            served=self._stores.served,
        )
        roster.begin()
        return roster

    def on_lost(self, cause: Cause) -> bool:
        """The coordinator is gone, or the node ended with it; returns whether to try another."""
        roster = self._node.roster
        self._is_elsewhere = roster is not None and roster.status.closed == FENCED_OUT
        self._losses_at.append(self._clock.monotonic())
        return may_meet_again(self._task, cause, self._losses_at, fenced=self._is_elsewhere)

    def run(self, run_once: Callable[[NodeTask], Ending]) -> Ending:
        """Runs the workers around one store after the other, in this process.

        ``run_once`` blocks until the workers are done or the store is gone.
        """
        node = self._node
        try:
            while True:
                try:
                    planned = self.plan_next()
                except OSError as error:
                    meant = Cause.RENDEZVOUS_UNREACHABLE
                    return judge_raised(meant, str(error), says_full=is_full(error))
                node.reached_store = self.meets
                end = run_once(planned)
                if not self.on_lost(end.cause):
                    return end
                if self._is_elsewhere:
                    end = replace(end, detail="the job goes on around another store")
                node.on_store_lost(end, len(self._losses_at))
        except SignalException as error:  # torch's handler is heard between two stores too
            return judge_raised(Cause.PREEMPTED, say_error(error))
