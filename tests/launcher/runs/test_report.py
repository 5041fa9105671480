"""``launcher report`` over folders that the agent's own writers have written."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.ledger import AgentLedger, ledger_path
from launcher.agent.node.supervisor import write_outcome as write_node_outcome
from launcher.api.report import report_run
from launcher.code.record import CodeRecord
from launcher.commands.cli import run_command
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, NodeOutcome
from launcher.contract.records import dump_record
from launcher.follow.loop import write_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.page import render_page
from launcher.runs.particulars import STACK_CHARACTERS, read_particulars
from launcher.runs.report import TIMELINE_LINES, read_postmortem, render_postmortem
from launcher.targets.docker_options import ContainerSettings
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from tests.launcher.looks import write_look
from tests.launcher.runs.test_page import lines_of
from tests.launcher.worker_ends import worker_end

MakePlan = Callable[..., LaunchPlan]
SUBMITTED_AT = 1000.0
STACK = f"first{'x' * (STACK_CHARACTERS - 2)}\nb"
"""Its first calls are cut off."""


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
            node_index=0, incarnation=0, cause=Cause.TRAINING_FAILED, attempts=2, first=peer,
            started_at=1001.0, finished_at=1030.0,
        ),
        NodeOutcome(
            node_index=1, incarnation=1, cause=Cause.RESTARTS_EXHAUSTED, attempts=2, first=boom,
            detail="rank 1: boom", started_at=1001.0, finished_at=1029.0,
        ),
    )  # fmt: skip
    for outcome in outcomes:
        folder = run.node_dir(outcome.node_index, outcome.incarnation)
        write_node_outcome(folder / protocol.OUTCOME_FILE, outcome)
    ended = {"cause": "restarts-exhausted", "exit_code": 1}
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
    write_outcome(run, run.read_plan(), Ending(cause=Cause.TRAINING_FAILED), SUBMITTED_AT + 25)
    return run


def write_json(path: Path, *values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def training(*events: tuple[float, str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The training's events of two starts, as (seconds since submission, name, values)."""
    place = {"source": "train", "node_index": 0, "incarnation": 0, "rank": 0}
    return [
        {**place, "event": name, "at": SUBMITTED_AT + at, "monotonic_s": at, **values}
        for at, name, values in events
    ]


def enrich(run: RunFolder) -> LaunchPlan:
    """Puts the run on two hosts, whose clocks differ, and adds all that it may leave."""
    hosts = [
        HostFacts(host=Host(name=name), cpu_count=1, state_dir="/x", clock_offset_s=offset_s)
        for name, offset_s in (("a", 0.0), ("b", 1.5))
    ]
    own = HostsSettings(hosts=tuple(hosts), ssh_config=None, containers=ContainerSettings())
    plan = replace(run.read_plan(), target="hosts", own=own, attempt=1)
    run.write_plan(plan, "")
    started = (4.5, "train-started", {"attempt": 0, "world_size": 2})
    progress = {"loss": 0.5, "lr": 0.1, "save_stall_s": 0.25, "samples": 32}
    write_json(
        run.path / "ledger/train-0-0-0-0.jsonl",
        *training(
            started,
            (5.0, "loaded", {"attempt": 0, "step": 0}),
            (5.5, "first-step", {"attempt": 0, "step": 1}),
            (7.5, "progress", {"attempt": 0, "step": 5, **progress}),
            (11.5, "train-started", {"attempt": 1, "world_size": 1}),
            (12.0, "loaded", {"attempt": 1, "step": 3}),
            (13.0, "first-step", {"attempt": 1, "step": 4}),
            (18.0, "progress", {"attempt": 1, "step": 8, **progress}),
        ),
    )
    for node, incarnation, torch in ((0, 0, "2.13.0"), (1, 0, "2.6.0"), (1, 1, "2.12.0")):
        versions = {"torch": torch, "Python": "3.11.9", "code": "0badc0de"}
        told = {"versions": versions, "hardware": {"CPUs": "8"}}
        write_ledger(run, node, incarnation, (19, "installed", told))
    jumped = ledger_path(run.path, 1, 0)
    first, *others = map(json.loads, jumped.read_text().splitlines())
    write_json(jumped, first, *({**event, "at": event["at"] - 7.6} for event in others))
    (run.path / "ledger/odd-0.jsonl").write_text('{"torn\n[]\n')
    (run.path / "nodes/2/0").mkdir(parents=True)
    for number in (1, 0):
        said = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": STACK}}}
        write_json(
            run.node_dir(1, 1) / f"attempt-0/rank-{number}/error.json", said if number else 3
        )
    survived = worker_end(0, "KeyError: <1>", failed_at=SUBMITTED_AT + 7.6)
    fell = replace(survived, exception="RuntimeError: Connection closed by peer", rank=1)
    for end in (survived, fell, replace(survived, rank=2, exit_code=0)):
        folder = run.node_dir(0, 0) / f"attempt-0/rank-{end.rank}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "exit.json").write_text(dump_record(end))
    write_look(run.node_dir(0, 0), "look-1", 0, why="hang")
    write_json(run.path / "job.json", {"env": {"LR": "0.1"}, "nnodes": 2, "mounts": ["a", "b"]})
    code = CodeRecord(
        root="/home/me/digits", inner="", start=("train.py",), hash="0badc0de" * 8, files=3,
        bytes=99, commit="600dc0de" * 5, is_dirty=True,
    )  # fmt: skip
    write_json(run.path / "code.json", asdict(code))
    (run.path / "code.diff").write_text("-a\n+<b>\n")
    return plan


def test_the_page_of_a_run_has_all_that_is_known_of_it(run, expect_golden):
    plan = enrich(run)
    write_outcome(run, plan, Ending(cause=Cause.TRAINING_FAILED), SUBMITTED_AT + 25)
    told = report_run(run, SUBMITTED_AT + 9999)
    page = render_page([read_particulars(run, told, "script-error, certain", "")], [""])
    text = lines_of(page).replace(str(run.path), "/runs/digits-0a1b2c")
    expect_golden("report.html", text.replace("x" * (STACK_CHARACTERS - 2), "<!-- many -->"))
    shown = re.search("code</summary><pre>(.*?)</pre>", page, re.DOTALL)
    assert shown
    assert render_postmortem(told) == unescape(shown[1])


def test_a_running_run_is_told_up_to_now(run):
    run.write_launcher()
    (run.node_dir(1, 1) / protocol.OUTCOME_FILE).unlink()
    path = ledger_path(run.path, 1, 1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]) + '{"torn')
    told = report_run(run, SUBMITTED_AT + 41)
    assert (told.state, told.cause) == ("running", None)
    assert told.nodes[2].phases_s["running"] == 30.0
    assert "digits-0a1b2c: RUNNING on local" in render_postmortem(told)


def test_the_trainings_own_ledger_does_not_disturb(ended):
    before = report_run(ended, 0.0)
    folder = ended.path / protocol.LEDGER_DIR
    (folder / "training-0-0-0-0.jsonl").write_text('{"source": "training", "event": "step"}\n')
    with ledger_path(ended.path, 0, 0).open("a") as file:
        file.write('{"source": "training", "event": "step"}\n[]\nnot json\n{"source": "agent"}\n')
    assert report_run(ended, 0.0) == before


def test_a_long_timeline_is_cut_and_says_so(ended):
    many = [(30 + i, "gpu-wait", {"waited_s": 1.0}) for i in range(TIMELINE_LINES)]
    write_ledger(ended, 1, 1, *many)
    text = render_postmortem(report_run(ended, 0.0))
    assert "earlier events; all of them: --json" in text
    assert text.count("waited 1.0 s") == TIMELINE_LINES


def test_a_run_under_plain_torchrun_is_told_with_what_there_is(tmp_path, make_plan):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=1, nproc_per_node=1, engine="torchrun")
    run.create(plan, "", SUBMITTED_AT)
    (run.path / "nodes/0/0/id_x/attempt_0/0").mkdir(parents=True)
    write_outcome(run, plan, Ending(cause=Cause.COMPLETED), SUBMITTED_AT + 5)
    text = render_postmortem(report_run(run, SUBMITTED_AT + 9))
    assert "SUCCEEDED on local (completed; exit code 0; 5.0 s)" in text
    assert "0.0: 1 attempt, plain torchrun keeps no report of a node" in text
    assert "timeline" not in text


def test_the_command_prints_text_or_json(ended, capsys):
    root = str(ended.path.parent)
    assert run_command(["report", "digits", "--runs", root]) == 0
    assert "first failure: rank 1 on node 1" in capsys.readouterr().out
    assert run_command(["report", "--runs", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "restarts-exhausted"


def test_a_folder_whose_records_still_call_the_cause_reason_is_told_alike(ended, capsys):
    def told() -> list[str]:
        for command in (["report", "digits"], ["status", "digits"], ["ps", "--all"]):
            run_command([*command, "--runs", str(ended.path.parent)])
        return capsys.readouterr().out.splitlines()

    new = told()
    records = [*ended.path.rglob(protocol.OUTCOME_FILE), *ended.path.glob("ledger/agent-*")]
    for path in records:
        text = path.read_text().replace('"schema": 3', '"schema": 2')
        of_end = re.compile(r'^(  |.*"agent-ended".*)"cause"', re.MULTILINE)
        path.write_text(of_end.sub(r'\1"reason"', text))
    assert sum('"reason": "' in path.read_text() for path in records) == 5
    assert told() == new


def test_a_run_that_never_started_is_told_as_such(tmp_path, make_plan):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=2)
    run.create(plan, "", SUBMITTED_AT)
    pending = {(0, 0): ("pending", "ImagePullBackOff"), (1, 0): ("running", "")}
    told = read_postmortem(run, plan, "running", None, SUBMITTED_AT - 1, pending)
    text = render_postmortem(told)
    assert "  nodes:\n    0.0: pending; ImagePullBackOff\n    1.0: running\n" in text
    assert told.duration_s == 0.0
    end = Ending(cause=Cause.TARGET_UNREACHABLE, detail="ImagePullBackOff")
    outcome = write_outcome(run, plan, end, SUBMITTED_AT + 9)
    told = read_postmortem(run, plan, outcome.state, outcome, SUBMITTED_AT + 9, {})
    text = render_postmortem(told)
    assert "target-unreachable; ImagePullBackOff" in text
    assert "  nodes: none was started\n" in text


def test_starts_are_counted_from_the_ledger_where_no_worker_left_a_folder(tmp_path, make_plan):
    run = RunFolder(tmp_path / "digits-0a1b2c")
    plan = make_plan(nnodes=1)
    run.create(plan, "", SUBMITTED_AT)
    run.node_dir(0, 0).mkdir(parents=True)
    write_ledger(run, 0, 0, (-5, "agent-started", {}), *start(2, 2))
    told = read_postmortem(run, plan, "running", None, SUBMITTED_AT + 9, {(0, 0): ("running", "")})
    assert "    0.0: 1 attempt, running" in render_postmortem(told)
    assert told.timeline[0].after_s == 0.0, "no time is negative"


@pytest.mark.parametrize("cause", [Cause.INTERRUPTED, Cause.STOP_REQUESTED, Cause.PREEMPTED])
def test_nodes_that_a_person_ended_are_told_as_the_outcome_has_it(cause, run):
    stop = ("stop-requested", {"reason": "preempted", "grace_s": 30.0})
    ended = ("agent-ended", {"cause": "preempted", "exit_code": 143})
    node = NodeOutcome(node_index=0, incarnation=0, cause=Cause.PREEMPTED, attempts=1)
    write_node_outcome(run.node_dir(0, 0) / protocol.OUTCOME_FILE, node)
    (run.node_dir(1, 1) / protocol.OUTCOME_FILE).unlink()
    for place in ((0, 0), (1, 0), (1, 1)):
        ledger_path(run.path, *place).unlink()
        write_ledger(run, *place, (1, "agent-started", {}), (20, *stop), (21, *ended))
    plan = run.read_plan()
    write_outcome(run, plan, Ending(cause=cause), SUBMITTED_AT + 25)
    told = render_postmortem(read_postmortem(run, plan, "stopped", run.read_outcome(), 1030.0, {}))
    assert f"    0.0: 1 attempt, {cause}, exit code 143" in told
    assert f"    1.1: 1 attempt, {cause}, exit code 143" in told
    # An earlier one was ended before anybody asked.
    assert "    1.0: 1 attempt, preempted, exit code 143" in told
    for place, why in (("0.0", cause), ("1.0", "preempted"), ("1.1", cause)):
        assert f"{place}  stop requested: {why}" in told
        assert f"{place}  agent ended: {why}, exit code 143" in told
