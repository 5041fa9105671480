"""What a node keeps of its workers' attempts, and what it reports of itself."""

import json
from types import SimpleNamespace

import pytest

from launcher.agent.endings import AttemptJudge
from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.gpu_memory import GpuGate
from launcher.agent.engine.monitoring.health_server import read_health, render_metrics
from launcher.agent.engine.node_state import Node
from launcher.agent.ledger import AgentLedger
from launcher.agent.membership.group import Member, Membership, RoundCause
from launcher.agent.worker.heartbeat import HeartbeatWriter, WorkerBeat
from launcher.agent.worker_exit import write_exit
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending, WorkerExit
from tests.launcher.vitals import leave_vitals
from tests.launcher.worker_ends import worker_end
from tests.waiting import StoppedClock


def leave(attempts: Attempts, **codes: int) -> None:
    """The workers r0, r1 and so on end with these codes."""
    for place in attempts.workers:
        if (code := codes.get(f"r{place.rank}")) is not None:
            seen = WorkerExit(
                attempt=attempts.number, rank=place.rank, local_rank=place.local_rank,
                exit_code=code, failed_at=1.0, was_asked=code == -10,
            )  # fmt: skip
            write_exit(place.folder, seen)


@pytest.mark.parametrize(
    ("codes", "beating", "regroups", "ends", "well", "signalled"),
    [
        ({"r4": 1, "r5": 0}, (), False, [(4, 1, "script-error")], [5], False),
        ({"r4": -15, "r5": 0}, (), False, [(4, -15, "killed")], [5], True),
        ({"r4": 143, "r5": 0}, (), False, [(4, 143, "script-error")], [5], True),
        ({"r4": 0, "r5": 0}, (), False, [], [4, 5], False),
        ({"r4": -9}, (5,), False, [(4, -9, "killed"), (5, -9, "killed")], [], False),
        ({"r4": -10}, (5,), False, [(5, -9, "killed"), (4, -10, "terminated")], [], False),
        # One that has no record began too late to leave any, or was never there.
        ({"r4": -10}, (), False, [(5, 1, "script-error"), (4, -10, "terminated")], [], False),
        ({"r4": -10}, (), True, [(4, -10, "terminated")], [], False),
        ({}, (), True, [], [], False),
        ({"r4": 1}, (), False, [(4, 1, "script-error")], [], False),
    ],
)
def test_an_attempt_ends_by_what_its_workers_left(
    codes, beating, regroups, ends, well, signalled, attempts
):
    places = attempts.begin({0: 4, 1: 5})
    leave(attempts, **codes)
    for place in places:
        if place.rank in beating:
            HeartbeatWriter(place.heartbeat).step()
    found = attempts.collect_ends(regroups=regroups)
    assert [(end.rank, end.exit_code, end.cause) for end in found] == ends
    assert {end.log for end in found} == {f"nodes/0/0/attempt-0/rank-{end.rank}" for end in found}
    assert [end.rank for end in attempts.ended_well] == well
    assert attempts.were_signalled() is signalled
    assert attempts.have_succeeded() is (len(well) == 2)
    assert [place.rank for place in attempts.running()] == [4, 5][len(codes) :]
    assert attempts.steps() == len(beating)
    words = {end.rank: end.exception for end in found if f"r{end.rank}" not in codes}
    killed, late = "it was killed together with its guard process", "it ended before its script"
    assert all(word.startswith(killed if rank in beating else late) for rank, word in words.items())


def test_a_worker_that_is_ended_while_it_waits_for_a_world_tells_what_broke_the_last(attempts):
    attempts.begin({0: 4, 1: 5, 2: 6})
    leave(attempts, r4=-10, r5=-10, r6=-9)
    attempts.break_reasons |= {1: "RuntimeError: Timed out waiting 3000ms", 2: "the same"}
    told = {end.rank: end.exception for end in attempts.collect_ends(regroups=True)}
    assert told == {4: "", 5: "RuntimeError: Timed out waiting 3000ms", 6: ""}
    (attempts.workers[1].folder / protocol.ERROR_FILE).write_text('{"message": "KeyError: 1"}')
    assert [end.exception for end in attempts.collect_ends() if end.rank == 5] == ["KeyError: 1"]


def test_an_attempt_is_judged_by_its_own_workers_alone(attempts):
    attempts.begin({0: 4})
    leave(attempts, r4=1)
    attempts.worker_ends, attempts.break_reasons = attempts.collect_ends(), {0: "reset by peer"}
    attempts.begin({0: 4})
    assert (attempts.worker_ends, attempts.break_reasons) == ((), {})


def test_attempts_are_counted_on_and_leave_what_readers_expect(attempts, tmp_path):
    assert (attempts.number, attempts.count, attempts.have_succeeded()) == (-1, 0, False)
    for name in ("attempt-2", "attempt-10", "attempt-x"):
        (attempts.node_dir / name).mkdir(parents=True)
    again = Attempts(attempts.node_dir, tmp_path, tmp_path / "scratch")
    (attempts.node_dir / protocol.STOP_READY_FILE).touch()
    (first,) = again.begin({0: 3})
    assert (again.number, again.count, first.folder.parent.name) == (11, 1, "attempt-11")
    assert not (attempts.node_dir / protocol.STOP_READY_FILE).exists()
    assert {path.name for path in first.folder.iterdir()} == {"stdout", "stderr"}
    first.heartbeat.unlink()
    (second,) = again.begin({0: 3})
    assert (again.number, again.count) == (12, 2)
    assert second.heartbeat.exists()


def test_a_full_disk_is_told_with_what_was_said(attempts, monkeypatch, tmp_path):
    monkeypatch.delenv(protocol.CHECKPOINT_DIR, raising=False)
    told = [
        attempts.describe_disk(Ending(cause=Cause.DISK_FULL, detail=detail), None)
        for detail in ("", "No space left on device")
    ]
    assert told[1].endswith("; No space left on device")
    assert not told[0].endswith("; ")


@pytest.fixture
def node(attempts, tmp_path):
    clock = StoppedClock()
    ledger = AgentLedger(tmp_path / "ledger/a.jsonl", clock, node_index=0, incarnation=0)
    used = iter([{"0": 0}, {"0": 9 << 30}, {"0": 0}, *[{"0": 9 << 30}] * 6, {"0": 0}])
    gate = GpuGate(lambda: next(used), 10.0, clock)
    judge = AttemptJudge(max_restarts=3, same_failure_limit=3)
    made = Node(attempts, judge, ledger, gate, clock, tmp_path / "scratch")
    made.healer = SimpleNamespace(start=list)  # its thread would not end
    return made


def test_a_node_s_ledger_tells_its_phases_rounds_ends_and_restarts(node, tmp_path, capfd):
    begun: list[int] = []
    assert (node.num_nodes, node.had_group) == (0, False)
    node.on_first_round = lambda: begun.append(1)
    node._clock.now = 2.0
    node.enter("rendezvous")
    node._clock.now = 5.0
    node.on_rendezvous(1, 2)
    assert (node.num_nodes, node.had_group) == (2, True)
    node.attempts.begin({0: 4, 1: 5})
    leave(node.attempts, r4=1, r5=0)
    node._clock.now = 9.0
    node.enter("restart")
    ends = node.attempts.collect_ends()
    node.record_ends(ends)
    node.record_ends(ends)
    node.judge.faults = 1
    node.on_restart(Cause.WORKER_FAULT, ends)
    node.wait_for_gpus()
    node.wait_for_gpus()
    node._clock.now = 10.0
    node.enter("rendezvous")
    node.on_rendezvous(0, 1)
    first = Member("0.a", "10.0.0.1", 1234)
    node.on_met_again(
        Membership(
            generation=7, cause=RoundCause.LOST, first=first, rank=1, size=3, before=2, workers=4
        )
    )
    node.on_healed(7, 11, 0.25)
    assert begun == [1]
    assert node.seconds_by_phase(12.0) == {
        "start": 2.0,
        "rendezvous": 3.0,
        "run": 6.0,
        "restart": 1.0,
    }
    lines = (tmp_path / "ledger/a.jsonl").read_text().splitlines()
    always = {"schema", "source", "node_index", "incarnation", "at", "monotonic_s"}
    told = [{k: v for k, v in json.loads(line).items() if k not in always} for line in lines]
    assert told == [
        {"event": "rendezvous-began", "attempt": -1},
        {"event": "rendezvous-ended", "attempt": 0, "rank": 1, "world_size": 2},
        {"event": "worker-ended", "attempt": 0, "rank": 5, "exit_code": 0, "cause": "completed"},
        {"event": "worker-ended", "attempt": 0, "rank": 4, "exit_code": 1, "cause": "script-error"},
        {"event": "restart", "attempt": 0, "cause": "worker-fault",
         "detail": "restart 1 of 3 (worker-fault): rank 4: exit code 1"},
        {"event": "gpu-wait", "attempt": 0, "waited_s": pytest.approx(0.6)},
        {"event": "rendezvous-began", "attempt": 0},
        {"event": "rendezvous-ended", "attempt": 1, "rank": 0, "world_size": 1},
        {"event": "met-again", "attempt": 0, "cause": "lost", "generation": 7, "rank": 1,
         "world_size": 3},
        {"event": "healed", "attempt": 0, "generation": 7, "step": 11, "paused_s": 0.25},
    ]  # fmt: skip
    assert capfd.readouterr().err == (
        "[agent] restart 1 of 3 (worker-fault): rank 4: exit code 1\n"
        "[agent] healed in 0.25 s: step 11, 3 nodes\n"
    )


@pytest.mark.parametrize(
    ("before", "cause", "exception", "said"),
    [
        (0, Cause.HANG, "", "restart 1 of 3 (hang)"),
        (2, Cause.WORKER_FAULT, "ValueError: x", "restart 3 of 3 (worker-fault)"),
        (3, Cause.WORKER_FAULT, "ValueError: x", "restart (worker-fault)"),
        (0, Cause.WORKER_FAULT, "Connection closed by peer", "restart (worker-fault)"),
        (0, Cause.MEMBERSHIP, "", "restart (membership)"),
    ],
)
def test_a_restart_is_counted_over_all_nodes_by_the_node_that_is_to_blame(
    node, capfd, before, cause, exception, said
):
    node.roster = SimpleNamespace(last=SimpleNamespace(faults=before))
    node.on_restart(cause, (worker_end(0, exception),))
    assert capfd.readouterr().err.startswith(f"[agent] {said}: rank 0: exit code 1")


@pytest.mark.parametrize(
    ("phase", "most_s", "beats", "is_healthy", "step", "age_s"),
    [
        ("run", 60.0, {0: (5, 41.0), 1: (7, 99.0)}, True, 7, 59.0),
        ("run", 60.0, {0: (5, 40.0)}, True, 5, 60.0),
        ("run", 60.0, {0: (5, 39.0)}, False, 5, 61.0),
        ("restart", 60.0, {0: (5, 39.0)}, True, 5, 61.0),
        ("run", None, {0: (5, 39.0)}, True, 5, 61.0),
        ("run", 60.0, {0: (0, 1.0)}, True, 0, None),
        ("run", 60.0, {2: (5, 1.0)}, True, 0, None),  # it has ended
        ("run", 60.0, {}, True, 0, None),
    ],
)
def test_a_node_is_healthy_while_a_worker_makes_steps(
    phase, most_s, beats, is_healthy, step, age_s, tmp_path
):
    attempts = SimpleNamespace(
        number=3, node_dir=tmp_path, workers=(0, 1, 2),
        running=lambda: [SimpleNamespace(rank=rank) for rank in (0, 1)],
        beats=lambda: {
            rank: WorkerBeat(pid=1, number=1, steps=steps, at=at)
            for rank, (steps, at) in beats.items()
        },
    )  # fmt: skip
    node = SimpleNamespace(
        attempts=attempts, phase=phase, num_nodes=2, judge=SimpleNamespace(restarts={"hang": 1}),
        seconds_by_phase=lambda now: {"run": now + 0.00049},
    )  # fmt: skip
    leave_vitals(tmp_path)
    book = most_s and SimpleNamespace(most_s=most_s)
    health = read_health(node, book, StoppedClock(now=100.0))
    assert (health.healthy, health.step, health.heartbeat_age_s) == (is_healthy, step, age_s)
    age = (
        "# HELP launcher_heartbeat_age_seconds Since the oldest heartbeat.\n"
        "# TYPE launcher_heartbeat_age_seconds gauge\n"
        f"launcher_heartbeat_age_seconds {age_s}\n"
    )
    assert render_metrics(health) == (
        "# HELP launcher_healthy 1 while the node makes progress.\n"
        f"# TYPE launcher_healthy gauge\nlauncher_healthy {int(is_healthy)}\n"
        "# HELP launcher_world_size Workers of the job.\n"
        "# TYPE launcher_world_size gauge\nlauncher_world_size 6\n"
        "# HELP launcher_attempt Attempt of this node's workers.\n"
        "# TYPE launcher_attempt gauge\nlauncher_attempt 3\n"
        "# HELP launcher_step Optimizer steps of this attempt.\n"
        f"# TYPE launcher_step gauge\nlauncher_step {step}\n{age if age_s else ''}"
        "# HELP launcher_restarts_total Restarts of workers by cause.\n"
        '# TYPE launcher_restarts_total counter\nlauncher_restarts_total{cause="hang"} 1\n'
        "# HELP launcher_phase_seconds_total By phase of the agent.\n"
        '# TYPE launcher_phase_seconds_total counter\nlauncher_phase_seconds_total{phase="run"} '
        "100.0\n# HELP launcher_node_cpu_ratio Busy share of the machine.\n"
        "# TYPE launcher_node_cpu_ratio gauge\nlauncher_node_cpu_ratio 0.5\n"
        "# HELP launcher_node_memory_bytes In use.\n"
        "# TYPE launcher_node_memory_bytes gauge\nlauncher_node_memory_bytes 1\n"
        "# HELP launcher_node_memory_limit_bytes At most.\n"
        "# TYPE launcher_node_memory_limit_bytes gauge\nlauncher_node_memory_limit_bytes 2\n"
    )
