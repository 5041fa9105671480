"""Runs this node's workers under torch's elastic agent, with one coordinator after the other, and
returns how that ended. Imports torch.

torch's agent calls ``next_rendezvous`` before each start of its workers, when the old ones are
dead. The handler then records why they died, counts it, and waits for the GPUs or ends the run.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch

from launcher.agent.disk import is_full, says_full
from launcher.agent.endings import (
    COMPLETED,
    OTHERS_FINISHED,
    judge_finished,
    judge_raised,
    may_meet_again,
)
from launcher.agent.engine import preload
from launcher.agent.engine.gpu_memory import GpuBusyError
from launcher.agent.engine.node_state import Node
from launcher.agent.engine.rendezvous import Admission, RosterHandler, describe
from launcher.agent.engine.tee import Tee
from launcher.agent.engine.torch_settings import (
    build_config,
    keep_signals_from_torch,
    quieten_torch,
)
from launcher.agent.membership import group
from launcher.agent.membership.candidates import Candidates, Meeting
from launcher.agent.membership.client import Client, ReplacedError
from launcher.agent.stopping import StopFiles
from launcher.agent.streams import say
from launcher.agent.worker import guard
from launcher.contract.causes import Cause
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending, NodeOutcome
from launcher.contract.errors import name_signal
from launcher.contract.node_plan import ROSTER, Elastic, NodeTask, Static
from launcher.contract.waits import SOON_S, wait_until

REQUEST_LIMIT_S = 2.0
"""How long to wait for a stop request after a SIGTERM from elsewhere has ended workers."""
_STORE_ERRORS = (
    *(rdzv.RendezvousConnectionError, rdzv.RendezvousStateError),
    *(DistNetworkError, DistStoreError),
)


def run_workers(
    task: NodeTask, node: Node, archive: str, clock: Clock, *, forks: bool
) -> NodeOutcome:
    """Blocks until the workers are done for good. Call from the main thread."""
    run_once = partial(_run_round, node=node, archive=archive, forks=forks)
    ending, attempts = Rounds(task, node, clock).run(run_once), node.attempts
    node.record_ends(attempts.collect_ends(regroups=True))
    first = next(iter(attempts.worker_ends), None)
    is_full_disk = ending.cause is Cause.DISK_FULL
    return NodeOutcome(
        node_index=task.node.node_index,
        incarnation=task.node.incarnation,
        cause=ending.cause,
        detail=attempts.describe_disk(ending, first) if is_full_disk else ending.detail,
        attempts=attempts.count,
        restarts=dict(node.judge.restarts),
        first=first,
        collateral=attempts.worker_ends[1:],
        ended_well=min(attempts.ended_well, key=lambda end: end.failed_at, default=None),
    )


class Rounds:
    """The coordinators that this node follows, one after the other."""

    def __init__(self, task: NodeTask, node: Node, clock: Clock) -> None:
        meets_in_folder = bool(task.settings.meet_dir) and task.node.max_nodes > 1
        is_static = isinstance(task.node.rendezvous, Static)
        kind = Meeting if meets_in_folder else Candidates
        self._stores = None if is_static else kind(task, clock, node.token)
        node.healer.rounds = self
        self._task, self._node, self._clock = task, node, clock
        self._meets_in_folder = meets_in_folder
        self._planned, self._losses_at = task, list[float]()
        # The group of a node that was here before may have moved to another store.
        self._is_elsewhere = task.node.incarnation > 0 or node.attempts.number >= 0

    def plan_next(self) -> NodeTask:
        """The task with the coordinator that follows. Blocks; raises ``OSError``."""
        if self._stores:
            self._planned = self._stores.plan_round(elsewhere=self._is_elsewhere)
        return self._planned

    def open_roster(self) -> Client:
        """A client of the coordinator that was planned. Blocks; raises ``RendezvousError``."""
        plan, before = self._planned.node, self._node.roster
        elastic = plan.rendezvous
        assert isinstance(elastic, Elastic)
        assert self._stores
        roster = Client(
            elastic.endpoint_host,
            elastic.endpoint_port,
            elastic.id,
            self._stores.rules,
            token=self._node.token,
            last=before.last if before else group.NONE,
            addr=plan.local_addr,
            served=self._stores.served,
        )
        roster.begin()
        return roster

    def on_lost(self, cause: Cause) -> bool:
        """Notes that the coordinator is gone, for this cause; returns whether to try another."""
        roster = self._node.roster
        self._is_elsewhere = roster is not None and roster.status.closed == group.FENCED_OUT
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
                    cause = Cause.RENDEZVOUS_UNREACHABLE
                    return judge_raised(cause, str(error), says_full=is_full(error))
                node.had_group = self._meets_in_folder
                end = run_once(planned)
                if not self.on_lost(end.cause):
                    return end
                if self._is_elsewhere:
                    end = replace(end, detail="the job goes on around another store")
                node.on_store_lost(end, len(self._losses_at))
        except SignalException as error:  # torch's handler is heard between two stores too
            return judge_raised(Cause.PREEMPTED, describe_error(error))


def _run_round(task: NodeTask, node: Node, archive: str, *, forks: bool) -> Ending:
    """Blocks until the workers are done or the store is gone."""
    quieten_torch()
    keep_signals_from_torch()
    tee = Tee(task.node.node_index) if task.settings.tee else None
    backend = "static" if isinstance(task.node.rendezvous, Static) else register_handler(node)
    config = build_config(task, node, backend, tee, forks=forks)
    command = task.node.literal_command
    try:
        if forks:
            elastic_launch(config, guard.enter_forked)(*command)
        else:
            elastic_launch(config, sys.executable)("-u", archive, "worker", *command)
        end = COMPLETED
    except BaseException as error:
        end = judge_error(error, node)
    finally:
        if tee:
            tee.close()
    return judge_finished(end, node.roster.status.closed if node.roster else None)


def register_handler(node: Node) -> str:
    """Registers the handlers of this node with torch and returns the name of their backend."""
    with contextlib.suppress(ValueError):  # at the second store
        rdzv.rendezvous_handler_registry.register(ROSTER, partial(NodeHandler, node))
    return ROSTER


class NodeHandler(RosterHandler):
    """Also decides what happens between two attempts of the node."""

    def __init__(self, node: Node, _: rdzv.RendezvousParameters) -> None:
        assert node.healer.rounds
        self._node = node
        node.roster = first = node.healer.rounds.open_roster()
        super().__init__(lambda: node.roster or first)
        self._files = StopFiles(node.attempts.node_dir)
        self._admission = Admission(self._files, node, SystemClock())
        self._has_run = False
        self._regroups = False

    def next_rendezvous(self) -> rdzv.RendezvousInfo:
        """Raises ``RendezvousClosedError`` where ``node.ending`` says why this node ends."""
        node = self._node
        comes_too_late, blame_peer = node.healer.comes_too_late, False
        with node.healer.suspended():
            if comes_too_late:
                self._roster.leave()
                self._end(OTHERS_FINISHED)
            if self._has_run:
                blame_peer = self._judge_last_attempt()
                node.attempts.forget_speaker()
                self._admission.new_attempt()
                node.wait_for_gpus()
            node.enter("rendezvous")
            try:
                joins = self._roster.may_expect
                membership = self._roster.expect() if joins else self._roster.meet()
            finally:
                self._report_losses()
            node.healer.joins = joins
        assert membership is not None
        self._regroups = False
        if blame_peer and (sealed := self._roster.membership):
            # By now it is known if a node left.
            is_fault = sealed.cause is group.RoundCause.FAULT
            cause = Cause.WORKER_FAULT if is_fault else Cause.LOST_PEER
            node.on_restart(cause, node.attempts.worker_ends)
        node.on_rendezvous(membership.rank, membership.size)
        self._has_run = True
        return describe(membership)

    def _judge_last_attempt(self) -> bool:
        """Ends the node, or counts a restart; returns whether each failed worker blames a peer."""
        node = self._node
        if node.attempts.were_signalled():
            # The supervisor may have got the same signal, and will ask.
            wait_until(self._files.is_requested, REQUEST_LIMIT_S, SOON_S, SystemClock())
        if self._files.is_requested() and not self._files.is_for_resize():
            # Not an error: the others re-form, so the rendezvous must stay open.
            raise SignalException("asked to stop", signal.SIGTERM)
        if node.attempts.have_succeeded():
            # The group re-forms, but this node's workers had ended well before that.
            self._roster.say("finish")
            self._roster.wait_until_closed()
            self._end(COMPLETED)
        node.enter("restart")
        attempts, regroups = node.attempts, self._regroups
        attempts.worker_ends = attempts.collect_ends(regroups=regroups)
        node.record_ends(attempts.worker_ends)
        step = node.judge.judge(attempts.worker_ends, attempts.steps(), regroups=regroups)
        if isinstance(step, Ending):
            if step.cause is not Cause.DISK_FULL:
                # A full disk ends this node alone: the others wait for it, or go on without it.
                self._roster.close(group.FAILED)
            self._end(step)
        if step.cause is not Cause.LOST_PEER:
            node.on_restart(step.cause, attempts.worker_ends)
        return step.cause is Cause.LOST_PEER and bool(attempts.worker_ends)

    def _end(self, end: Ending) -> NoReturn:
        self._node.ending = end
        raise rdzv.RendezvousClosedError

    def _report_losses(self) -> bool:
        """Reports nodes that were lost since the last call; returns whether there were any."""
        losses = self._roster.take_losses()
        for text in losses:
            self._node.ledger.write("node-lost", detail=text)
            say(text)
        return bool(losses)

    def num_nodes_waiting(self) -> int:
        """torch's agent asks many times a second; above zero, it ends the workers and comes to
        ``next_rendezvous``. Zero while the workers heal by themselves."""
        healer, roster = self._node.healer, self._roster
        if healer.comes_too_late:
            return 1
        if healer.can_heal and not roster.is_closed():
            if roster.status.newcomers:
                # The workers go on until the newcomers are ready: there is nothing to commit.
                roster.say("admit")
            self._report_losses()
            return 0
        self._admission.poll()
        waiting = int(bool(healer.refused)) or super().num_nodes_waiting()
        if self._report_losses():
            # The workers are ended next, and only they know in which collective they wait.
            self._node.looker.take_look("loss", stacks=False)
        self._regroups = self._regroups or waiting > 0
        return waiting


_CAUSE_OF_ERROR: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Cause], ...] = (
    (SignalException, Cause.PREEMPTED),
    (ChildFailedError, Cause.TRAINING_FAILED),
    (preload.ServerGoneError, Cause.AGENT_FAILED),
    (GpuBusyError, Cause.GPU_BUSY),
    (rdzv.RendezvousClosedError, Cause.RENDEZVOUS_CLOSED),
    (rdzv.RendezvousTimeoutError, Cause.RENDEZVOUS_UNREACHABLE),
    (_STORE_ERRORS, Cause.STORE_LOST),
)
"""The cause that each type of error stands for; any other error is a fault of the agent."""


def judge_error(error: BaseException, node: Node) -> Ending:
    """Why the node ends, from what torch's agent has raised; also leaves the group."""
    if node.ending is not None:
        return node.ending
    roster, succeeded = node.roster, node.attempts.have_succeeded()
    if isinstance(error, SignalException) and roster:
        if succeeded:
            roster.say("finish")
        # So that the others re-form at once.
        roster.leave()
    if isinstance(error, ChildFailedError):
        node.attempts.worker_ends = node.attempts.collect_ends()
    cause = next((cause for kind, cause in _CAUSE_OF_ERROR if isinstance(error, kind)), None)
    if cause is Cause.RENDEZVOUS_CLOSED and not isinstance(error, ReplacedError):
        status = roster.status if roster else group.GroupStatus()
        by_fault = status.cause is group.RoundCause.FAULT
        return node.judge.judge_closing(status.closed, node.attempts.worker_ends, by_fault=by_fault)
    # The coordinator, which takes the generations, says it in words.
    is_state = isinstance(error, rdzv.RendezvousStateError)
    full = is_full(error) or (is_state and says_full(str(error)))
    if cause is None and not full:
        traceback.print_exception(error)
    return judge_raised(
        cause,
        describe_error(error) if cause or full else f"{type(error).__name__}: {error}",
        says_full=full,
        had_group=node.had_group,
        succeeded=succeeded,
        first=next(iter(node.attempts.worker_ends), None),
    )


def describe_error(error: BaseException) -> str:
    """An error with a known cause, in one line; empty if the failed worker's record says it."""
    match error:
        case SignalException():
            return f"the agent got {name_signal(error.sigval)}"
        case ChildFailedError():
            return ""
        case rdzv.RendezvousTimeoutError():
            return "too few nodes came in time"
    return str(error).partition("\n")[0]
