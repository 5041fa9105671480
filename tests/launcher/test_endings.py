"""Every ending that is known: from what a worker left behind to the run's exit code and headline.

A row is one ending: what happened, and what each of worker, node and run is said to have ended by.
"""

import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError
from torch.distributed.elastic import rendezvous as rdzv
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from launcher.agent.endings import TOO_FEW_LEFT, Again, AttemptJudge, judge_node, judge_worker
from launcher.agent.engine import preload
from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.gpu_memory import GpuBusyError, GpuGate
from launcher.agent.engine.node_state import Node
from launcher.agent.engine.torch_agent import judge_error
from launcher.agent.membership.client import ReplacedError
from launcher.agent.worker_exit import write_exit
from launcher.contract import protocol
from launcher.contract.causes import RETRY_FROM, Cause, NodeState
from launcher.contract.ending import Ending, NodeOutcome, WorkerExit
from launcher.follow.endings import Replace, Restart, decide_action
from launcher.follow.loop import write_outcome
from launcher.follow.target import NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from tests.launcher.worker_ends import worker_end
from tests.waiting import StoppedClock

MakePlan = Callable[..., LaunchPlan]
PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:18333"
OTHER = "ValueError: boom"


@dataclass(frozen=True)
class W:
    """How one worker ended. ``asked``: its agent had asked it to; ``failed``: before that."""

    code: int = 0
    error: str = ""
    asked: bool = False
    failed: bool = False
    oom: bool = False
    hung: bool = False
    stderr: str = ""


def end_workers(node_dir: Path, workers: tuple[W, ...]) -> Attempts:
    """One attempt of these workers, as their guards leave it."""
    node_dir.mkdir(parents=True, exist_ok=True)
    attempts = Attempts(node_dir, node_dir.parents[2], node_dir)
    places = attempts.begin({rank: rank for rank in range(len(workers))})
    for place, worker in zip(places, workers, strict=True):
        at = 1e9 + place.rank
        if worker.error:
            text = json.dumps({"message": {"message": worker.error}})
            (place.folder / protocol.ERROR_FILE).write_text(text)
            os.utime(place.folder / protocol.ERROR_FILE, (at, at))
        (place.folder / protocol.STDERR_FILE).write_text(worker.stderr)
        seen = WorkerExit(
            attempt=attempts.number, rank=place.rank, local_rank=place.rank, exit_code=worker.code,
            failed_at=at, was_asked=worker.asked, had_failed=worker.failed, oom_killed=worker.oom,
            hung=worker.hung,
        )  # fmt: skip
        write_exit(place.folder, seen)
    return attempts


@pytest.mark.parametrize(
    ("workers", "causes", "first", "next_step"),
    [
        ((W(1, OTHER), W(-15, asked=True)), "script-error terminated", 0, "worker-fault"),
        ((W(-15, asked=True), W(1, OTHER, asked=True, failed=True)), "script-error terminated", 1,
         "worker-fault"),
        ((W(1, PEER), W(1, OTHER)), "script-error script-error", 1, "worker-fault"),
        ((W(1, PEER), W(1, PEER)), "script-error script-error", 0, "lost-peer"),
        ((W(-15, asked=True), W(-15, asked=True)), "terminated terminated", 0, "lost-peer"),
        ((W(-11), W(1, PEER)), "crashed script-error", 0, "worker-fault"),
        ((W(-6, stderr="terminate called after throwing an instance of 'std::out_of_range'\n"
            "  what():  index 7\n"), W(1, PEER)), "crashed script-error", 0,
         "worker-fault"),
        ((W(-9), W(1, PEER)), "killed script-error", 0, "worker-fault"),
        ((W(-9, oom=True), W(1, PEER)), "out-of-memory script-error", 0, "worker-fault"),
        ((W(1, PEER), W(-9, hung=True)), "hang script-error", 1, "hang"),
        ((W(0), W(1, OTHER)), "script-error", 1, "worker-fault"),
        ((W(0), W(1, PEER)), "script-error", 1, "lost-peer"),
        ((W(143), W(143)), "script-error script-error", 0, "preempted"),
        ((W(130), W(143)), "script-error script-error", 0, "preempted"),
        ((W(143), W(1, OTHER)), "script-error script-error", 0, "worker-fault"),
        ((W(2, stderr="t.py: error: no --foo"),), "script-error", 0, "bad-input, 2, no"),
        ((W(1, "OSError: [Errno 28] No space left on device: '/ck/a'"),), "disk-full", 0,
         "disk-full, 198, yes"),
        ((W(1, "RuntimeError: unable to allocate shared memory(shm): "
            "No space left on device (28)"),), "script-error", 0, "worker-fault"),
        ((W(1, "torch.OutOfMemoryError: CUDA out of memory."),), "script-error", 0, "worker-fault"),
        ((W(3),), "script-error", 0, "worker-fault"),
        ((W(-9, oom=True, asked=True),), "terminated", 0, "lost-peer"),
    ],
)  # fmt: skip
def test_an_attempt_ends_by_its_first_cause(workers, causes, first, next_step, tmp_path):
    attempts = end_workers(tmp_path / "run/nodes/0/0", workers)
    ends = attempts.collect_ends()
    assert " ".join(str(end.cause) for end in ends) == causes
    assert ends[0].rank == first
    step = AttemptJudge(max_restarts=3, same_failure_limit=3).judge(ends, 0, regroups=False)
    if isinstance(step, Again):
        assert step.cause == next_step
    else:
        code = step.cause.exit_code
        retry = "yes" if code >= RETRY_FROM else "no"
        assert f"{step.cause}, {int(code)}, {retry}" == next_step


@pytest.mark.parametrize(
    ("code", "exception", "facts", "told"),
    [
        (-15, "", "asked failed own", "script-error 3"),
        (-15, "", "asked own", "terminated -15"),
        (-15, PEER, "asked failed own", "terminated -15"),
        (-15, OTHER, "asked failed own", "script-error 3"),
        (-15, OTHER, "asked failed", "killed -15"),
        (-15, "", "asked failed", "terminated -15"),
        (-9, "", "full", "disk-full -9"),
        (1, OTHER, "full", "script-error 1"),
        (0, "", "full", "completed 0"),
        (0, "", "", "completed 0"),
        (-9, "", "memory", "out-of-memory -9"),
        (-9, "", "memory full", "out-of-memory -9"),
        (-9, "", "hung asked memory", "hang -9"),
        (0, "", "hung", "completed 0"),
        (-9, "", "asked memory", "terminated -9"),
        (1, "", "memory own", "script-error 1"),
    ],
)
def test_a_worker_that_failed_before_it_was_asked_to_end_is_told_by_its_own_failure(
    code, exception, facts, told
):
    seen = WorkerExit(
        attempt=4, rank=5, local_rank=1, exit_code=code, failed_at=7.0, steps=9,
        was_asked="asked" in facts, had_failed="failed" in facts, own_code=3 * ("own" in facts),
        oom_killed="memory" in facts, has_room="full" not in facts, hung="hung" in facts,
    )  # fmt: skip
    end = judge_worker(seen, exception)
    assert f"{end.cause} {end.exit_code}" == told
    assert (end.attempt, end.rank, end.local_rank, end.failed_at, end.steps) == (4, 5, 1, 7.0, 9)


def test_one_failure_may_be_enough_to_give_up():
    for limit, kind in ((1, Ending), (0, Again)):
        judge = AttemptJudge(max_restarts=9, same_failure_limit=limit)
        assert isinstance(judge.judge((worker_end(),), 0, regroups=False), kind)


RUNS = [
    # workers, max_restarts, equal failures before; the node's cause and code; the run's line
    ((W(1, OTHER),), 0, 0, "training-failed 1",
     "failed: training-failed 1: rank 0 on node 0: ValueError: boom"),
    ((W(1, OTHER),), 1, 1, "restarts-exhausted 1",
     "failed: restarts-exhausted 1: rank 0 on node 0: ValueError: boom"),
    ((W(1, OTHER),), 9, 2, "restarts-exhausted 1",
     "failed: restarts-exhausted 1: rank 0 on node 0: ValueError: boom"),
    ((W(1, PEER),), 9, 8, "restarts-exhausted 1",
     f"failed: restarts-exhausted 1: rank 0 on node 0: {PEER}"),
    ((W(-9, oom=True), W(1, PEER)), 0, 0, "out-of-memory 1",
     "failed: out-of-memory 1: rank 0 on node 0: out of memory"),
    ((W(-9, hung=True), W(1, PEER)), 0, 0, "training-failed 1",
     "failed: training-failed 1: rank 0 on node 0: it hung"),
    ((W(0), W(-9, hung=True)), 0, 0, "training-failed 1",
     "failed: training-failed 1: rank 0 on node 0: it had ended with exit code 0, "
     "1.0 s before rank 1 hung"),
    ((W(-11), W(1, PEER)), 0, 0, "training-failed 1",
     "failed: training-failed 1: rank 0 on node 0: SIGSEGV (11)"),
    ((W(3),), 0, 0, "training-failed 1",
     "failed: training-failed 1: rank 0 on node 0: exit code 3"),
    ((W(2, stderr="usage: t.py\nt.py: error: no --foo\n"),), 9, 0, "bad-input 2",
     "failed: bad-input 2: rank 0 on node 0: exit code 2"),
    ((W(1, stderr="/usr/bin/python3: No module named trai\n"),), 0, 0, "training-failed 1",
     "failed: bad-input 2: rank 0 on node 0: exit code 1"),
    ((W(1, "OSError: [Errno 28] No space left on device: '/ck/a'"),), 9, 0, "disk-full 198",
     "failed: disk-full 198: rank 0 on node 0: OSError: [Errno 28] No space left on device: "
     "'/ck/a'"),
    ((W(),), 0, 0, "completed 0", "succeeded: completed 0: -"),
]  # fmt: skip


@pytest.mark.parametrize(("workers", "allowed", "before", "node_line", "run_line"), RUNS)
def test_a_run_ends_by_what_its_first_worker_did(
    workers, allowed, before, node_line, run_line, make_plan, tmp_path
):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(engine="agent", nproc_per_node=len(workers), max_restarts=allowed)
    attempts = end_workers(run.node_dir(0, 0), workers)
    node = end_node(attempts, plan, before)
    assert f"{node.cause} {node.exit_code}" == node_line
    (run.node_dir(0, 0) / protocol.OUTCOME_FILE).write_text(node.to_json())
    assert tell_run(run, plan, seen(0, node.exit_code)) == run_line


def end_node(attempts: Attempts, plan: LaunchPlan, before: int) -> NodeOutcome:
    """The outcome of a node after so many equal attempts and this one."""
    judge = AttemptJudge(max_restarts=plan.max_restarts, same_failure_limit=3)
    if attempts.have_succeeded():
        return NodeOutcome(node_index=0, incarnation=0, cause=Cause.COMPLETED)
    ends = attempts.collect_ends()
    steps = [judge.judge(ends, 0, regroups=False) for _ in range(before + 1)]
    assert all(isinstance(step, Again) for step in steps[:-1])
    end = steps[-1]
    assert isinstance(end, Ending)
    return NodeOutcome(
        node_index=0,
        incarnation=0,
        cause=end.cause,
        detail=end.detail,
        first=ends[0],
        collateral=ends[1:],
        ended_well=next(iter(attempts.ended_well), None),
    )


def seen(index: int, code: int | None, **fields: object) -> NodeObservation:
    state = NodeState.MISSING if code is None else NodeState.EXITED
    given = {"incarnation": 0, "state": state, "exit_code": code, **fields}
    return NodeObservation(node_index=index, **given)  # type: ignore[arg-type]


def tell_run(
    run: RunFolder, plan: LaunchPlan, *nodes: NodeObservation, headline: bool = True
) -> str:
    """The run's ending in a line, or what follows in place of one."""
    observation = Observation(run_id=run.run_id, nodes=nodes)
    action = decide_action(plan, observation, replaced={}, since_first_exit_s=1e9)
    if isinstance(action, Replace | Restart):
        return type(action).__name__.lower()
    assert isinstance(action, Ending)
    end = write_outcome(run, plan, action, 2e10)
    first = end.failure.first if end.failure else None
    said = (first.headline if first else "-") if headline else end.detail
    return f"{end.state}: {end.cause} {end.exit_code}: {said}"


ALREADY = W(1, OTHER)
CHILD_FAILED = ChildFailedError("t.py", {0: ProcessFailure(0, 1, 1, "/none")})
BEGAN_LATER = "began later, and saves its checkpoints in the same folder"
NOBODY_SAYS = "rendezvous-closed: another node ended the run"
LOST = rdzv.RendezvousConnectionError("gone")


@pytest.mark.parametrize(
    ("error", "facts", "told"),
    [
        (SignalException("x", signal.SIGTERM), "", "preempted: the agent got SIGTERM (15)"),
        (SignalException("x", signal.SIGTERM), "succeeded", "completed: "),
        (CHILD_FAILED, "failed", "training-failed: "),
        (CHILD_FAILED, "full", "disk-full: "),
        (preload.ServerGoneError("it went away"), "", "agent-failed: it went away"),
        (GpuBusyError("12 GiB held"), "succeeded", "gpu-busy: 12 GiB held"),
        (ReplacedError("another came"), "", "rendezvous-closed: another came"),
        (rdzv.RendezvousClosedError("x"), "", "rendezvous-closed: another node ended the run"),
        (rdzv.RendezvousTimeoutError("x"), "",
         "rendezvous-unreachable: too few nodes came in time"),
        (LOST, "", "rendezvous-unreachable: gone"),
        (LOST, "met", "store-lost: gone"),
        (rdzv.RendezvousStateError("No space left on device"), "met",
         "disk-full: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), "",
         "disk-full: [Errno 28] No space left on device"),
        (DistNetworkError("a\nb"), "met", "store-lost: a"),
        (KeyError("x"), "", "agent-failed: KeyError: 'x'"),
    ],
)  # fmt: skip
def test_what_torchs_agent_raises_has_a_cause(error, facts, told, tmp_path, capsys):
    workers = {"failed": (ALREADY,), "full": (W(1, "OSError: No space left on device"),),
               "succeeded": (W(),)}.get(facts, (W(-15),))  # fmt: skip
    attempts = end_workers(tmp_path / "run/nodes/0/0", workers)
    node: Any = SimpleNamespace(
        attempts=attempts, roster=None, had_group=facts == "met", ending=None,
        judge=AttemptJudge(max_restarts=3, same_failure_limit=3),
    )  # fmt: skip
    end = judge_error(error, node)
    assert f"{end.cause}: {end.detail}" == told


@pytest.mark.parametrize(
    ("closed", "cause", "allowed", "workers", "told"),
    [
        ("finished", "lost", 3, (), "completed: the other nodes finished the run"),
        ("failed", "lost", 3, (), "training-failed: another node ended the run"),
        ("failed", "lost", 3, (ALREADY,), "training-failed: "),
        ("restarts-exhausted", "fault", 3, (ALREADY,), "restarts-exhausted: "),
        ("restarts-exhausted", "fault", 0, (), "training-failed: another node ended the run"),
        ("stranded", "fault", 3, (ALREADY,), f"training-failed: {TOO_FEW_LEFT}"),
        ("stranded", "fault", 0, (ALREADY,), "training-failed: "),
        ("stranded", "lost", 3, (ALREADY,), NOBODY_SAYS),
        ("stranded", "fault", 3, (W(-15, asked=True),), NOBODY_SAYS),
        ("fenced", "lost", 3, (), NOBODY_SAYS),
        ("other run: b-2", "fault", 3, (ALREADY,), f"bad-input: run b-2 {BEGAN_LATER}"),
    ],
)
def test_a_closed_group_says_why(closed, cause, allowed, workers, told, tmp_path):
    ends = end_workers(tmp_path / "run/nodes/0/0", workers).collect_ends() if workers else ()
    judge = AttemptJudge(max_restarts=allowed, same_failure_limit=3)
    end = judge.judge_closing(closed, ends, by_fault=cause == "fault")
    assert f"{end.cause}: {end.detail}" == told


@pytest.mark.parametrize(
    ("stop", "told", "code", "oom", "expected"),
    [
        (None, "training-failed", 1, False, "training-failed 1: as told"),
        (None, None, -9, False,
         "killed 137: the agent ended with SIGKILL (9) and without a report"),
        (None, None, -9, True, "out-of-memory 1: the agent itself ran out of memory"),
        (None, None, -15, False,
         "preempted 143: the agent ended with SIGTERM (15) and without a report"),
        (None, None, 196, False,
         "agent-failed 196: the agent ended with exit code 196 and without a report"),
        (None, None, 1, False,
         "agent-failed 196: the agent ended with exit code 1 and without a report"),
        (None, None, -6, False,
         "killed 137: the agent ended with SIGABRT (6) and without a report"),
        ("preempted", None, -9, False, "preempted 143: "),
        ("interrupted", "training-failed", 1, False, "interrupted 130: "),
        ("stop-requested", "preempted", 143, False, "stop-requested 143: "),
        ("stop-requested", "completed", 0, False, "completed 0: as told"),
    ],
)  # fmt: skip
def test_a_stopped_or_silent_agent_has_a_cause_too(stop, told, code, oom, expected):
    end = told and NodeOutcome(node_index=0, incarnation=0, cause=Cause(told), detail="as told")
    silent = NodeOutcome(node_index=0, incarnation=0, cause=Cause.AGENT_FAILED)
    judged = judge_node(end, silent, code, stop and Cause(stop), killed=oom, had_begun=True)
    assert f"{judged.cause} {judged.exit_code}: {judged.detail}" == expected


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "bad-input"), (1, "bad-input"), (-6, "bad-input"), (-11, "bad-input"),
        (196, "agent-failed"), (-9, "killed"), (-15, "preempted"),
    ],
)  # fmt: skip
def test_an_agent_that_a_library_ends_before_it_has_workers_would_end_so_again(code, cause):
    silent = NodeOutcome(node_index=0, incarnation=0, cause=Cause.AGENT_FAILED)
    judged = judge_node(None, silent, code, None, killed=False, had_begun=False)
    assert judged.cause == cause
    assert judged.detail.endswith("while it imported torch") == (cause == "bad-input")


SEVERAL = [
    # nodes, max_restarts, exit codes with the outcomes that nodes left (None: gone); the run's line
    (1, {}, [(0, "completed")], "succeeded: completed 0: said by 0"),
    (2, {}, [(0, "completed"), (0, "completed")], "succeeded: completed 0: said by 0"),
    (2, {}, [(1, "out-of-memory"), (194, "rendezvous-closed")],
     "failed: out-of-memory 1: said by 0"),
    (2, {}, [(194, "rendezvous-closed"), (1, "restarts-exhausted")],
     "failed: restarts-exhausted 1: said by 1"),
    (2, {}, [(137, None), (137, None)], "restart"),
    (2, {}, [(None, None), (0, "completed")], "restart"),
    (2, {"nnodes": "1:2"}, [(None, None), (0, "completed")], "succeeded: completed 0: said by 1"),
    (1, {"replaced": 16}, [(137, None)],
     "failed: node-lost 137: node 0 ended with exit code 137, SIGKILL (9) (killed)"),
    (1, {"replaced": 16}, [(None, None)], "failed: node-lost 137: node 0 is gone"),
    (1, {"replaced": 16}, [(143, "preempted")],
     "failed: node-lost 137: node 0 ended with exit code 143, SIGTERM (15) (preempted)"),
    (1, {"replaced": 16}, [(193, "rendezvous-unreachable")],
     "failed: rendezvous-unreachable 193: node 0 ended with exit code 193 "
     "(rendezvous-unreachable)"),
    (1, {"replaced": 16}, [(195, "store-lost")],
     "failed: store-lost 195: node 0 ended with exit code 195 (store-lost)"),
    (1, {"replaced": 16}, [(196, "agent-failed")],
     "failed: agent-failed 196: node 0 ended with exit code 196 (agent-failed)"),
    (1, {"replaced": 16}, [(197, "gpu-busy")],
     "failed: gpu-busy 197: node 0 ended with exit code 197 (gpu-busy)"),
    (1, {"replaced": 0}, [(198, "disk-full")], "failed: disk-full 198: node 0: said by 0"),
    (1, {}, [(2, "bad-input")], "failed: bad-input 2: said by 0"),
    (1, {}, [(3, None)], "failed: target-unreachable 3: "),
    (1, {}, [(17, None)], "failed: training-failed 1: "),
    (1, {"engine": "torchrun"}, [(1, None)], "failed: training-failed 1: "),
    (1, {"engine": "torchrun"}, [(137, None)],
     "failed: node-lost 137: node 0 ended with exit code 137, SIGKILL (9)"),
    (1, {"engine": "torchrun", "max_restarts": 2}, [(137, None)], "restart"),
    (2, {"engine": "torchrun", "max_restarts": 2}, [(1, None), (0, None)], "restart"),
]  # fmt: skip


@pytest.mark.parametrize(("count", "fields", "nodes", "told"), SEVERAL)
def test_a_run_ends_by_what_its_nodes_did(count, fields, nodes, told, make_plan, tmp_path):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    fields = {"engine": "agent", "nnodes": count, "max_restarts": 0, **fields}
    used = fields.pop("replaced", 0)
    plan = make_plan(**fields)
    again = tuple(replace(node, incarnation=used) for node in plan.nodes)
    plan = replace(plan, nodes=again)
    for index, (_, cause) in enumerate(nodes):
        if cause:
            folder = run.node_dir(index, used)
            folder.mkdir(parents=True)
            end = NodeOutcome(
                node_index=index, incarnation=used, cause=Cause(cause), finished_at=index,
                detail=f"said by {index}",
            )  # fmt: skip
            (folder / protocol.OUTCOME_FILE).write_text(end.to_json())
    observed = [seen(index, code) for index, (code, _) in enumerate(nodes)]
    assert tell_run(run, plan, *observed, headline=False) == told


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        ("interrupted", "stopped: interrupted 130: as seen"),
        ("stop-requested", "stopped: stop-requested 143: as seen"),
        ("launcher-lost", "stopped: launcher-lost 137: as seen"),
        ("target-unreachable", "failed: target-unreachable 3: as seen"),
        ("preempted", "stopped: preempted 143: as seen"),
        ("node-lost", "failed: node-lost 137: as seen"),
    ],
)
def test_what_people_and_targets_end_is_told_as_they_said(driver, told, make_plan, tmp_path):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(engine="agent", nproc_per_node=1)
    end_workers(run.node_dir(0, 0), (W(143),))
    end = write_outcome(run, plan, Ending(cause=Cause(driver), detail="as seen"), 2e10)
    assert f"{end.state}: {end.cause} {end.exit_code}: {end.detail}" == told


@pytest.fixture
def node(tmp_path):
    attempts = end_workers(tmp_path / "run/nodes/0/0", (W(),))
    judge = AttemptJudge(max_restarts=3, same_failure_limit=3)
    ledger: Any = SimpleNamespace(write=lambda *_, **__: None)
    gate = GpuGate(None, 0.0, StoppedClock())
    return Node(attempts, judge, ledger, gate, StoppedClock(), tmp_path)


def test_a_node_that_meets_again_is_judged_anew(node):
    node.ending = Ending(cause=Cause.COMPLETED)
    node.on_store_lost(node.ending, 1)
    assert judge_error(LOST, node).cause is Cause.RENDEZVOUS_UNREACHABLE


def test_workers_that_a_lost_store_ended_are_a_restart_and_one_only(node):
    lost = Ending(cause=Cause.STORE_LOST, detail="gone")
    node.on_store_lost(lost, 1)
    assert node.judge.restarts == {}, "none had been started"
    node.attempts.number += 1
    node.on_store_lost(lost, 2)
    node.on_store_lost(lost, 3)
    assert node.judge.restarts == {"membership": 1}
    node.attempts.number += 1
    node.on_restart(Cause.WORKER_FAULT, ())
    node.on_store_lost(lost, 4)
    assert node.judge.restarts == {"membership": 1, "worker-fault": 1}
