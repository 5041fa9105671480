"""``launcher report`` over folders that the agent's own writers have written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.ledger import AgentLedger, ledger_path
from launcher.agent.node.outcome import write_outcome as write_node_outcome
from launcher.api.report import report_run
from launcher.commands.cli import run_command
from launcher.contract import protocol
from launcher.contract.node_outcome import NodeOutcome
from launcher.contract.reasons import Reason
from launcher.follow.loop import write_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.outcome import Outcome
from launcher.runs.report import TIMELINE_LINES, read_postmortem, render_postmortem
from tests.launcher.worker_ends import worker_end

MakePlan = Callable[..., LaunchPlan]
SUBMITTED_AT = 1000.0


class FakeClock:
    def __init__(self, at: float) -> None:
        self.at = at

    def wall(self) -> float:
        return SUBMITTED_AT + self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, duration_s: float) -> None:
        self.at += duration_s


def write_ledger(run: RunFolder, node: int, incarnation: int, *events: tuple[Any, ...]) -> None:
    """Events as (seconds since submission, name, values)."""
    clock = FakeClock(0)
    path = ledger_path(run.path, node, incarnation)
    ledger = AgentLedger(path, clock, node_index=node, incarnation=incarnation)
    for at, name, values in events:
        clock.at = at
        ledger.write(name, **values)


def start(at: float, world_size: int, attempt: int = 0) -> list[tuple[Any, ...]]:
    return [
        (at, "rendezvous-began", {"attempt": attempt}),
        (at + 1, "rendezvous-ended", {"rank": 0, "world_size": world_size}),
        (at + 1, "workers-started", {"attempt": attempt, "ranks": [0]}),
        (at + 2, "first-step", {"attempt": attempt}),
    ]


@pytest.fixture
def run(tmp_path: Path, make_plan: MakePlan) -> RunFolder:
    """Two nodes: node 1 was killed and replaced, then its worker failed for good."""
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=2, nproc_per_node=1, max_restarts=1)
    node = replace(plan.nodes[1], incarnation=1)
    plan = replace(plan, nodes=(plan.nodes[0], node))
    run.create(plan, "", SUBMITTED_AT)
    logs = {}
    for node_index, incarnation in ((0, 0), (1, 0), (1, 1)):
        folder = run.node_dir(node_index, incarnation) / "attempt-0" / f"rank-{node_index}"
        folder.mkdir(parents=True)
        (folder / "stderr").write_text("Traceback\nValueError: boom\n")
        logs[node_index] = str(folder.relative_to(run.path))
    boom = worker_end(1, "ValueError: boom", failed_at=1020.0, log=logs[1])
    peer = replace(
        boom, rank=0, exception="Connection closed by peer", log=logs[0], failed_at=1019.0
    )
    outcomes = (
        NodeOutcome(
            node_index=0, incarnation=0, reason=Reason.TRAINING_FAILED, attempts=2, first=peer,
            started_at=1001.0, finished_at=1030.0,
        ),
        NodeOutcome(
            node_index=1, incarnation=1, reason=Reason.RESTARTS_EXHAUSTED, attempts=2, first=boom,
            detail="rank 1: boom", started_at=1001.0, finished_at=1029.0,
        ),
    )  # fmt: skip
    for outcome in outcomes:
        folder = run.node_dir(outcome.node_index, outcome.incarnation)
        write_node_outcome(folder / protocol.OUTCOME_FILE, outcome)
    ended = {"reason": "restarts-exhausted", "exit_code": 1}
    restart = ("restart", {"attempt": 0, "cause": "membership"})
    write_ledger(
        run, 0, 0, (1, "agent-started", {}), *start(2, 2), (8, *restart), *start(9, 2, 1),
        (20, "agent-ended", ended),
    )  # fmt: skip
    write_ledger(run, 1, 0, (1, "agent-started", {}), *start(2, 2))
    write_ledger(run, 1, 1, (8, "agent-started", {}), *start(9, 2), (19, "agent-ended", ended))
    return run


@pytest.fixture
def ended(run: RunFolder) -> RunFolder:
    write_outcome(run, run.read_plan(), Outcome(reason=Reason.TRAINING_FAILED), SUBMITTED_AT + 25)
    return run


def test_a_report_names_cause_restarts_and_every_incarnation(ended: RunFolder) -> None:
    told = report_run(ended, SUBMITTED_AT + 99)
    assert (told.state, told.reason, told.engine) == (
        "failed",
        "restarts-exhausted",
        "agent",
    )
    assert told.failure is not None
    assert told.failure.first is not None
    assert told.failure.first.exception == "ValueError: boom"
    assert [failure.rank for failure in told.failure.collateral] == [0]
    assert told.restarts == {"membership": 1}
    nodes = [(n.node_index, n.incarnation, n.reason) for n in told.nodes]
    assert nodes == [(0, 0, "training-failed"), (1, 0, None), (1, 1, "restarts-exhausted")]
    assert told.duration_s == 25


def test_phases_of_a_killed_node_end_with_its_last_word(ended: RunFolder) -> None:
    told = report_run(ended, SUBMITTED_AT + 9999)
    assert told.nodes[0].phases_s == {"starting": 3.0, "rendezvous": 2.0, "running": 14.0}
    assert told.nodes[1].phases_s == {"starting": 2.0, "rendezvous": 1.0}
    assert told.phases_s["rendezvous"] == 4.0


def test_the_text_tells_the_same(ended: RunFolder) -> None:
    text = render_postmortem(report_run(ended, SUBMITTED_AT + 99))
    lines = text.splitlines()
    assert lines[0] == (
        "digits-0a1b2c: failed on local, engine agent "
        "(restarts-exhausted; rank 1: boom; fault: training; exit code 1; 25.0 s)"
    )
    assert "  first failure: rank 1 on node 1: ValueError: boom" in lines
    assert "    | ValueError: boom" in lines
    assert "  failed after it: rank 0 on node 0: Connection closed by peer" in lines
    assert "  restarts by cause, over all nodes: membership 1" in lines
    killed = "    1.0: 1 attempt, no report: it was killed, or its machine was lost; "
    assert any(line.startswith(killed) for line in lines)
    assert "         9.00  1.1  rendezvous began" in lines
    assert "         8.00  0.0  restart: membership" in lines
    assert "        19.00  1.1  agent ended: restarts-exhausted, exit code 1" in lines


def test_a_running_run_is_told_up_to_now(run: RunFolder) -> None:
    run.write_launcher()
    (run.node_dir(1, 1) / protocol.OUTCOME_FILE).unlink()
    path = ledger_path(run.path, 1, 1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]) + '{"torn')
    told = report_run(run, SUBMITTED_AT + 41)
    assert (told.state, told.reason) == ("running", None)
    assert told.nodes[2].phases_s["running"] == 30.0
    assert "digits-0a1b2c: running on local" in render_postmortem(told)


def test_the_trainings_own_ledger_does_not_disturb(ended: RunFolder) -> None:
    before = report_run(ended, 0.0)
    folder = ended.path / protocol.LEDGER_DIR
    (folder / "training-0-0-0-0.jsonl").write_text('{"source": "training", "event": "step"}\n')
    with ledger_path(ended.path, 0, 0).open("a") as file:
        file.write('{"source": "training", "event": "step"}\n[]\nnot json\n{"source": "agent"}\n')
    assert report_run(ended, 0.0) == before


def test_a_long_timeline_is_cut_and_says_so(ended: RunFolder) -> None:
    many = [(30 + i, "gpu-wait", {"waited_s": 1.0}) for i in range(TIMELINE_LINES)]
    write_ledger(ended, 1, 1, *many)
    text = render_postmortem(report_run(ended, 0.0))
    assert "earlier events; all of them: --json" in text
    assert text.count("waited 1.0 s") == TIMELINE_LINES


def test_a_run_under_plain_torchrun_is_told_with_what_there_is(
    tmp_path: Path, make_plan: MakePlan
) -> None:
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=1, nproc_per_node=1, engine="torchrun")
    run.create(plan, "", SUBMITTED_AT)
    (run.path / "nodes/0/0/id_x/attempt_0/0").mkdir(parents=True)
    write_outcome(run, plan, Outcome(reason=Reason.COMPLETED), SUBMITTED_AT + 5)
    text = render_postmortem(report_run(run, SUBMITTED_AT + 9))
    assert "succeeded on local, engine torchrun (completed; exit code 0; 5.0 s)" in text
    assert "0.0: 1 attempt, plain torchrun keeps no report of a node" in text
    assert "timeline" not in text


def test_the_command_prints_text_or_json(
    ended: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(ended.path.parent)
    assert run_command(["report", "digits", "--runs", root]) == 0
    assert "first failure: rank 1 on node 1" in capsys.readouterr().out
    assert run_command(["report", "--runs", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "restarts-exhausted"


def test_a_run_that_never_started_is_told_as_such(tmp_path: Path, make_plan: MakePlan) -> None:
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=2)
    run.create(plan, "", SUBMITTED_AT)
    pending = {(0, 0): ("pending", "ImagePullBackOff"), (1, 0): ("running", "")}
    told = read_postmortem(run, plan, "running", None, SUBMITTED_AT - 1, pending)
    text = render_postmortem(told)
    assert "  nodes:\n    0.0: pending; ImagePullBackOff\n    1.0: running\n" in text
    assert told.duration_s == 0.0
    end = Outcome(reason=Reason.TARGET_UNREACHABLE, detail="ImagePullBackOff")
    outcome = write_outcome(run, plan, end, SUBMITTED_AT + 9)
    told = read_postmortem(run, plan, outcome.state, outcome, SUBMITTED_AT + 9, {})
    text = render_postmortem(told)
    assert "target-unreachable; ImagePullBackOff" in text
    assert "  nodes: none was started\n" in text


def test_starts_are_counted_from_the_ledger_where_no_worker_left_a_folder(
    tmp_path: Path, make_plan: MakePlan
) -> None:
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=1)
    run.create(plan, "", SUBMITTED_AT)
    run.node_dir(0, 0).mkdir(parents=True)
    write_ledger(run, 0, 0, (-5, "agent-started", {}), *start(2, 2))
    told = read_postmortem(run, plan, "running", None, SUBMITTED_AT + 9, {(0, 0): ("running", "")})
    assert "    0.0: 1 attempt, running" in render_postmortem(told)
    assert told.timeline[0].after_s == 0.0, "no time is negative"
