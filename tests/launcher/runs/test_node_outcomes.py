"""The launcher reads what the agent's own writers write: one schema on both sides."""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.ledger import AgentLedger, ledger_path
from launcher.agent.node.supervisor import write_outcome
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.ending import Ending, NodeOutcome, WorkerEnd, parse_node_outcome
from launcher.contract.errors import ExitCode
from launcher.contract.process_stat import write_record
from launcher.contract.records import dump_record
from launcher.contract.reports import look
from launcher.contract.reports.look import Frame, Look, RankStacks, ThreadStack
from launcher.follow.loop import write_outcome as write_run_outcome
from launcher.plan.launch_plan import LaunchPlan, plan_replacement
from launcher.runs.failure import read_report
from launcher.runs.folder import RunFolder
from launcher.runs.ledger import read_restarts
from tests.launcher.worker_ends import worker_end as end

MakePlan = Callable[..., LaunchPlan]
PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:18333"


@pytest.fixture
def make_plan(make_plan: MakePlan) -> MakePlan:
    return functools.partial(make_plan, engine="agent", nproc_per_node=1, max_restarts=3)


class Folder:
    """A run folder as agents leave it."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)
        path.mkdir()

    def worker(self, node: int, rank: int, *, attempt: int = 0, **files: str) -> str:
        """Writes files (``exit`` is exit.json) of one worker; returns its folder's name."""
        folder = self.run.node_dir(node, 0) / f"attempt-{attempt}" / f"rank-{rank}"
        folder.mkdir(parents=True)
        names = {"exit": protocol.EXIT_FILE, "error": protocol.ERROR_FILE}
        for name, text in files.items():
            (folder / names.get(name, name)).write_text(text)
        return str(folder.relative_to(self.run.path))

    def node(self, node: int, cause: Cause, *ends: WorkerEnd, **fields: Any) -> None:
        """Writes a node's outcome by the agent's own writer."""
        folder = self.run.node_dir(node, 0)
        folder.mkdir(parents=True, exist_ok=True)
        times = {"started_at": 1.0, "finished_at": fields.pop("finished_at", 2.0)}
        told = {"cause": cause, "first": next(iter(ends), None), "collateral": ends[1:]}
        outcome = NodeOutcome(node_index=node, incarnation=0, **told, **times, **fields)
        write_outcome(folder / protocol.OUTCOME_FILE, outcome)

    def hang(self, node: int, rank: int, *frames: Frame, recorded: object = None) -> None:
        """What a node's agent leaves of a hang; ``recorded`` is torch's recorder's."""
        folder = look.look_dir(self.run.node_dir(node, 0), "hang-1")
        folder.mkdir(parents=True, exist_ok=True)
        thread = ThreadStack(name="MainThread", is_main=True, frames=frames)
        stacks = RankStacks(rank=rank, pid=1, taken_by="py-spy", threads=(thread,))
        (folder / look.STACKS.format(rank=rank)).write_text(dump_record(stacks))
        (folder / look.COLLECTIVES.format(rank=rank)).write_text(json.dumps(recorded))
        told = Look(id="hang-1", at=1.0, why="hang", attempt=0)
        (folder / look.LOOK_FILE).write_text(dump_record(told))

    def ledger(self, node: int, *causes: str) -> None:
        ledger = AgentLedger(
            ledger_path(self.run.path, node, 0), SystemClock(), node_index=node, incarnation=0
        )
        ledger.write("agent-started")
        # The group changed before this node had begun a worker: no restart.
        ledger.write("restart", attempt=0, cause="membership")
        ledger.write("workers-started", attempt=0, ranks=[0])
        for cause in causes:
            ledger.write("restart", attempt=0, cause=cause)
            ledger.write("workers-started", attempt=1, ranks=[0])
        # The run ended while this node was about to start its workers again.
        ledger.write("restart", attempt=1, cause="lost-peer")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "digits-0a1b2c")


def test_an_outcome_is_read_as_the_agent_wrote_it(folder):
    ends = (end(3, "ValueError: boom", steps=7), end(2, PEER))
    folder.node(1, Cause.TRAINING_FAILED, *ends, attempts=2, restarts={"hang": 1}, detail="why")
    outcome = folder.run.read_node_outcome(1, 0)
    assert (outcome.worker_ends, outcome.cause) == (ends, Cause.TRAINING_FAILED)
    assert (outcome.attempts, outcome.restarts, outcome.detail) == (2, {"hang": 1}, "why")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1}', "null"])
def test_anything_else_is_no_outcome(text):
    assert parse_node_outcome(text) is None


def test_the_first_cause_is_found_over_all_nodes_with_its_log(folder, make_plan):
    log = folder.worker(1, 1, attempt=2, stderr="Traceback\nValueError: boom\n")
    folder.node(0, Cause.TRAINING_FAILED, end(0, PEER, failed_at=1.0))
    folder.node(
        1, Cause.TRAINING_FAILED, end(1, "ValueError: boom", failed_at=9.0, attempt=2, log=log)
    )
    report = read_report(folder.run, make_plan(nnodes=2))
    assert (report.first.node_index, report.first.rank, report.first.attempt) == (1, 1, 2)
    assert report.first.exception == "ValueError: boom"
    assert report.first.log_tail == ("Traceback", "ValueError: boom")
    assert report.first.log.endswith("attempt-2/rank-1/stderr")
    assert [failure.rank for failure in report.collateral] == [0]


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (end(0, exit_code=-9, cause="signal"), "SIGKILL (9)"),
        (end(0, exit_code=-11, cause="signal"), "SIGSEGV (11)"),
        (end(0, exit_code=-9, cause="out-of-memory"), "out of memory"),
        (end(0, exit_code=-15, cause="terminated"), "ended by its agent"),
        (end(0, exit_code=-9, cause="hang"), "it hung"),
        (end(0, exit_code=7), "exit code 7"),
        (end(0, "KeyError: 'x'"), "KeyError: 'x'"),
    ],
)
def test_every_cause_has_words(folder, make_plan, worker, words):
    folder.node(0, Cause.TRAINING_FAILED, worker)
    report = read_report(folder.run, make_plan(nnodes=1))
    assert report.first.exception == words


def test_a_hang_is_shown_by_its_stacks(folder, make_plan):
    log = folder.worker(0, 0, stderr="", stdout="epoch 1\n")
    folder.hang(0, 0, Frame(function="recv", file="train.py", line=3))
    folder.node(0, Cause.TRAINING_FAILED, end(0, exit_code=-9, cause="hang", log=log))
    report = read_report(folder.run, make_plan(nnodes=1))
    assert report.first.log_tail == ('  File "train.py", line 3 in recv',)


@pytest.mark.parametrize(
    ("waits_in", "is_recorded"),
    [("distributed/distributed_c10d.py", False), ("autograd/graph.py", True)],
    ids=["a call of torch.distributed", "the backward pass of DDP"],
)
def test_of_workers_that_hang_the_one_is_named_for_which_the_others_wait(
    folder, make_plan, waits_in, is_recorded
):
    script = Frame(function="<module>", file="/x/train.py", line=9)
    call = Frame(function="wait", file=f"/x/torch/{waits_in}", line=1)
    for rank, calls in ((0, [*[script] * 20, call, script]), (1, [script])):
        entries = [{"retired": True}, {"retired": not is_recorded or rank == 1}]
        # As gloo leaves it, though the last one is over.
        status = {"0": {"last_enqueued_collective": 14, "last_completed_collective": 13}}
        folder.hang(0, rank, *calls, recorded={"pg_status": status, "entries": entries})
    logs = [folder.worker(0, rank) for rank in range(2)]
    hung = [end(r, exit_code=-9, cause="hang", log=log) for r, log in enumerate(logs)]
    folder.node(0, Cause.TRAINING_FAILED, *hung)
    report = read_report(folder.run, make_plan(nnodes=1, nproc_per_node=2))
    assert report.first.headline == "rank 1 on node 0: it hung"
    (other,) = report.collateral
    assert other.headline == "rank 0 on node 0: it hung: it waits for the others in a collective"


def test_a_node_that_was_killed_is_reported_by_its_workers_files(folder, make_plan):
    record = asdict(end(2, "RuntimeError: from the exit file", failed_at=5.0))
    folder.worker(0, 2, attempt=0, exit=json.dumps({**record, "exit_code": 4}))
    folder.worker(0, 2, attempt=1, exit=json.dumps(record))
    folder.worker(
        0, 3, attempt=1, stderr=f"Traceback (most recent call last):\n{PEER}\n", stdout=""
    )
    report = read_report(folder.run, make_plan(nnodes=1, nproc_per_node=2))
    assert (report.first.rank, report.first.exception) == (2, record["exception"])
    assert [(f.rank, f.local_rank, f.exception) for f in report.collateral] == [(3, 1, PEER)]


def test_a_node_without_any_worker_is_reported_by_its_agents_lines(folder, make_plan):
    folder.node(0, Cause.BAD_INPUT)
    folder.run.console(0, 0).write_text("[supervisor] no node plan was given\n")
    report = read_report(folder.run, make_plan(nnodes=1))
    assert report.first is None
    assert report.console_tail == ("[supervisor] no node plan was given",)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"exit_code": 137, "detail": "its host said so"}, "its host said so"),
        ({"exit_code": ExitCode.DISK_FULL}, "No space left on device"),
        ({"exit_code": ExitCode.DISK_FULL, "detail": "/x is full"}, "/x is full"),
        ({"exit_code": 137, "detail": protocol.LAUNCHER_GONE}, None),
        ({"exit_code": 137}, None),
        ({"detail": "it runs"}, None),
        ({"exit_code": 0, "detail": "it ended well"}, None),
    ],
)
def test_a_node_that_could_write_nothing_is_reported_by_its_host(folder, make_plan, record, told):
    console = folder.run.console(1, 0)
    console.parent.mkdir(parents=True)
    console.write_text("a\nb\n")
    write_record(console.parent, record)
    first = read_report(folder.run, make_plan(nnodes=2, nproc_per_node=2)).first
    assert (first and first.exception) == told
    if first is not None:
        assert (first.node_index, first.rank, first.local_rank, first.attempt) == (1, 2, 0, 0)
        is_full = told == "No space left on device"
        cause = "disk-full" if is_full else "script-error"
        assert (first.exit_code, first.cause) == (record["exit_code"], cause)
        assert (first.log, first.log_tail) == (str(console), ("a", "b"))
        assert first.failed_at == (console.parent / "keeper.json").stat().st_mtime


def test_where_a_workers_files_are_elsewhere_its_lines_on_the_console_are_shown(folder, make_plan):
    folder.node(1, Cause.TRAINING_FAILED, end(2, log="nodes/1/0/attempt-0/rank-2"))
    lines = [f"[1/{number % 4}] {number}" for number in range(2, 90)]
    folder.run.console(1, 0).write_text("\n".join(["[1/2] \r\x1b[31mred", *lines]))
    first = read_report(folder.run, make_plan(nnodes=2)).first
    assert first.log == str(folder.run.console(1, 0))
    assert first.log_tail == tuple(map(str, range(42, 90, 4)))


def test_a_hang_of_another_attempt_and_a_look_that_was_asked_for_explain_nothing(folder, make_plan):
    log = folder.worker(0, 0, attempt=1, stderr="", stdout="a\r\nb\x85c\n\n")
    folder.hang(0, 0, *[Frame(function=str(n), file="train.py") for n in range(20)])
    hung = end(0, "after 9 s", exit_code=-9, cause="hang", log=log, attempt=1)
    for worker, told in (
        (hung, "b\\x85c"),
        (replace(hung, attempt=0), "11"),
        (replace(hung, attempt=0, cause=Cause.SCRIPT_ERROR), "b\\x85c"),
    ):
        folder.node(0, Cause.TRAINING_FAILED, worker)
        first = read_report(folder.run, make_plan(nnodes=1)).first
        assert told in first.log_tail[-1], first
        assert (first.exception == "it hung (after 9 s)") == (worker.cause is Cause.HANG)
    look_file = folder.run.node_dir(0, 0) / "looks/hang-1" / look.LOOK_FILE
    look_file.write_text(dump_record(Look(id="hang-1", at=1.0, why="asked", attempt=0)))
    folder.node(0, Cause.TRAINING_FAILED, replace(hung, attempt=0))
    first = read_report(folder.run, make_plan(nnodes=1)).first
    assert first.log_tail == ("a\\r", "b\\x85c")


def test_restarts_are_summed_by_cause_even_of_nodes_that_were_killed(folder):
    folder.node(0, Cause.COMPLETED, restarts={"membership": 2})
    folder.node(1, Cause.COMPLETED, restarts={"membership": 1, "worker-fault": 1})
    folder.worker(2, 0)
    folder.ledger(2, "hang", "membership")
    assert read_restarts(folder.run) == {"hang": 1, "membership": 4, "worker-fault": 1}


def test_an_earlier_incarnations_word_is_not_the_present_ones(folder, make_plan):
    folder.node(0, Cause.PREEMPTED, end(0, "early"))
    report = read_report(folder.run, plan_replacement(make_plan(nnodes=1), 0))
    assert report.first is None


def test_a_run_under_plain_torchrun_has_no_restarts_to_count(folder, make_plan):
    plan = make_plan(nnodes=1, engine="torchrun", max_restarts=0)
    assert write_run_outcome(folder.run, plan, Ending(cause=Cause.COMPLETED), 3.0).restarts == {}


def test_an_end_names_the_paths_of_containers_as_what_they_are_outside(
    tmp_path, make_plan, docker_facts
):
    folder, plan = Folder(tmp_path / "run"), make_plan(docker_facts)
    full = f"the disk at {protocol.CONTAINER_CHECKPOINT_DIR} is full"
    folder.node(0, Cause.DISK_FULL, detail=full)
    told = write_run_outcome(folder.run, plan, Ending(cause=Cause.DISK_FULL), 9.0).detail
    assert told == f"node 0: the disk at {plan.checkpoint_dir} is full"
