"""What the agent decides, from values alone: faults, stops, hangs, health, identity, settings."""

import io
import json
import os
import signal
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api

from launcher.agent.endings import Again, AttemptJudge, may_meet_again
from launcher.agent.engine import torch_agent
from launcher.agent.engine.monitoring.health_server import Health, start_health_server
from launcher.agent.engine.torch_agent import Rounds
from launcher.agent.node.identity import SOURCES, identify
from launcher.agent.stopping import Step, Stop
from launcher.agent.worker_exit import read_ends, write_exit
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.ending import Ending, WorkerExit, is_out_of_memory
from launcher.contract.errors import InputError
from launcher.contract.node_plan import (
    AgentSettings,
    Elastic,
    NodeTask,
    Static,
    StoreEndpoint,
    parse_task,
)
from launcher.targets.agent_archive import read_agent_sources, rename, render_agent_archive
from tests.launcher.node_plans import node_plan
from tests.launcher.worker_ends import worker_end as end
from tests.waiting import StoppedClock

NODE = node_plan(
    {"endpoint_host": "fd00::1", "is_host": True, "conf": (("join_timeout_s", "300"),)},
    local_addr="10.0.0.1",
    env=(("A", "1"), ("LAUNCHER_NODE_INDEX", "0")),
    device_ids=("0",),
)
STORES = (
    StoreEndpoint(host="a", port=1, node_index=0),
    StoreEndpoint(host="b", port=2, node_index=1),
)


def book(**values: Any) -> AttemptJudge:
    return AttemptJudge(**{"max_restarts": 100, "same_failure_limit": 3, **values})


# -- faults ------------------------------------------------------------------------------------


def test_only_a_workers_own_failure_counts():
    one = book()
    for ends in ((), (end(cause="terminated", exit_code=-15),)):
        assert one.judge(ends, 0, regroups=True) == Again(cause=Cause.MEMBERSHIP)
    lost, left = end(exception="RuntimeError: Connection closed by peer"), end(exit_code=143)
    assert one.judge((lost,), 0, regroups=True) == Again(cause=Cause.LOST_PEER)
    assert one.judge((left,), 0, regroups=False) == Again(cause=Cause.PREEMPTED)
    assert one.faults == 0
    assert one.judge((lost, end(exception="KeyError")), 0, regroups=True).cause == "worker-fault"
    assert one.faults == 1


def test_equal_failures_at_the_same_step_end_the_run_at_the_limit():
    one = book()
    verdicts = [
        one.judge((end(exception="ValueError"),), steps, regroups=False) for steps in (100, 104, 99)
    ]
    assert [type(verdict) for verdict in verdicts] == [Again, Again, Ending]


@pytest.mark.parametrize(
    "others",
    [
        [(end(exception="ValueError"), 200)],
        [(end(exception="KeyError"), 100)],
        [(end(exception="ValueError", exit_code=7), 100)],
    ],
)
def test_progress_or_another_failure_begins_the_count_anew(others):
    one = book()
    first = (end(exception="ValueError"), 100)
    for failure, steps in [first, first, *others, first, first]:
        assert isinstance(one.judge((failure,), steps, regroups=False), Again)


def test_losing_peers_for_ever_without_a_step_ends_the_run_too():
    one = book()
    ends = (end(exception="Connection reset by peer"),)
    verdicts = [one.judge(ends, 0, regroups=False) for _ in range(9)]
    assert [type(verdict) for verdict in verdicts] == [Again] * 8 + [Ending]


@pytest.mark.parametrize(
    ("codes", "oom_killed", "expected"),
    [([-9], True, True), ([1, -9], True, True), ([1], True, False), ([-9], False, False)],
)
def test_out_of_memory_takes_a_kill_and_the_word_of_the_kernel(codes, oom_killed, expected):
    assert is_out_of_memory(codes, oom_killed=oom_killed) is expected
    assert is_out_of_memory([], oom_killed=oom_killed) is oom_killed


# -- stopping and starting again ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "speaks", "acknowledged", "times", "step"),
    [
        (0, False, False, 1, Step.TERMINATE),
        (0, True, False, 1, Step.WAIT),
        (24, True, False, 1, Step.WAIT),
        (25, True, False, 1, Step.TERMINATE),
        (1, True, True, 1, Step.TERMINATE),
        (1, True, False, 2, Step.TERMINATE),
        (1, True, False, 3, Step.KILL),
        (32, True, True, 1, Step.KILL),
    ],
)
def test_a_stop_waits_for_the_answer_within_its_grace(now, speaks, acknowledged, times, step):
    stop = Stop(reason=Cause.PREEMPTED, requested_at=0, grace_s=30, times_requested=times)
    assert stop.decide(now, will_answer=speaks, acknowledged=acknowledged) is step


@pytest.mark.parametrize(
    ("now", "times", "step"),
    [(1, 1, Step.WAIT), (1, 2, Step.TERMINATE), (3, 1, Step.TERMINATE)],
)
def test_a_stop_waits_for_a_look_at_silent_workers_but_not_for_long(now, times, step, tmp_path):
    look = tmp_path / "look.json"
    stop = Stop(
        reason=Cause.PREEMPTED, requested_at=0, grace_s=30, times_requested=times, look_file=look
    )
    assert stop.decide(now, will_answer=False, acknowledged=False) is step
    look.touch()
    assert stop.decide(now, will_answer=False, acknowledged=False) is Step.TERMINATE


def test_sigterm_is_sent_once():
    stop = Stop(reason=Cause.PREEMPTED, requested_at=0, grace_s=30, terminated_at=1)
    assert stop.decide(2, will_answer=True, acknowledged=True) is Step.WAIT


@pytest.mark.parametrize(("now", "step"), [(2, Step.WAIT), (3, Step.KILL)])
def test_an_agent_that_has_begun_no_worker_is_not_given_the_grace(now, step):
    stop = Stop(reason=Cause.PREEMPTED, requested_at=0, grace_s=30, terminated_at=1)
    assert stop.decide(now, will_answer=False, acknowledged=False, has_begun=False) is step


@pytest.mark.parametrize(
    ("reason", "stores", "losses_at", "fenced", "goes_on"),
    [
        (Cause.STORE_LOST, (), (0.0,), False, True),
        (Cause.STORE_LOST, (), (*range(8),), False, True),
        (Cause.STORE_LOST, (), (*range(9),), False, False),
        (Cause.STORE_LOST, (), (*range(8), 61), False, True),
        (Cause.RENDEZVOUS_UNREACHABLE, (), (0.0,), False, False),
        (Cause.RENDEZVOUS_UNREACHABLE, STORES, (0.0,), False, True),
        (Cause.RENDEZVOUS_CLOSED, STORES, (0.0,), False, False),
        (Cause.RENDEZVOUS_CLOSED, STORES, (0.0,), True, True),
        (Cause.RENDEZVOUS_CLOSED, (), (0.0,), True, False),
        # Asked to end: it must not join the others for the rest of its grace.
        (Cause.PREEMPTED, STORES, (0.0,), True, False),
        (Cause.TRAINING_FAILED, STORES, (0.0,), False, False),
    ],
)
def test_another_store_is_tried_where_that_may_help_but_not_too_often(
    reason, stores, losses_at, fenced, goes_on
):
    task = NodeTask(node=NODE, settings=AgentSettings(stores=stores))
    assert may_meet_again(task, reason, losses_at, fenced=fenced) is goes_on


# -- health ------------------------------------------------------------------------------------

HEALTH = Health(
    healthy=True,
    phase="run",
    attempt=1,
    world_size=4,
    step=7,
    heartbeat_age_s=0.25,
    restarts={"hang": 1},
    phase_s={"run": 1.5},
)


def test_health_is_served_and_says_503_when_the_deadline_has_passed():
    states = [HEALTH, replace(HEALTH, healthy=False)]
    port = start_health_server("127.0.0.1", 0, lambda: states[0])
    url = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
        assert b"launcher_step 7" in answer.read()
    states.pop(0)
    for path, code in (("healthz", "503"), ("x", "404: try /healthz or /metrics")):
        with pytest.raises(urllib.error.HTTPError, match=f"Error {code}"):
            urllib.request.urlopen(f"{url}/{path}", timeout=5)
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        assert b"launcher_healthy 0" in answer.read()


# -- identity, settings, archive ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "environ", "host", "index", "address"),
    [
        ("plan", {}, "h", 0, "10.0.0.1"),
        ("launcher", {"LAUNCHER_NODE_INDEX": "4"}, "h", 4, "h"),
        (
            "pytorchjob",
            {"PET_NODE_RANK": "2", "RANK": "9", "POD_IP": "10.1.1.1"},
            "h",
            2,
            "10.1.1.1",
        ),
        ("pytorchjob", {"RANK": "1"}, "j-master-0", 1, "j-master-0"),
        ("pytorchjob", {}, "job-worker-3", 3, "job-worker-3"),
        ("trainjob", {"PET_NODE_RANK": "1"}, "h", 1, "h"),
        ("indexed-job", {"JOB_COMPLETION_INDEX": "5"}, "h", 5, "h"),
    ],
)
def test_a_node_finds_its_index_where_its_target_tells_it(source, environ, host, index, address):
    task = identify(NodeTask(node=NODE, settings=AgentSettings(identity=source)), environ, host)
    assert (task.node.node_index, task.node.local_addr) == (index, address)
    assert task.node.log_dir == f"/run/nodes/{index}/0"
    assert dict(task.node.env)["LAUNCHER_NODE_INDEX"] == str(index)
    assert isinstance(task.node.rendezvous, Elastic)
    assert task.node.rendezvous.is_host is (index == 0)


@pytest.mark.parametrize("source", [*sorted(set(SOURCES) - {"plan"}), "elsewhere"])
def test_a_node_that_is_not_told_its_index_says_so(source):
    task = NodeTask(node=NODE, settings=AgentSettings(identity=source))
    with pytest.raises(InputError, match=r"index is not known|is unknown"):
        identify(task, {}, "a-host")


@pytest.mark.parametrize(
    "task",
    [
        NodeTask(node=NODE),
        NodeTask(node=NODE, settings=AgentSettings(start="fork", preload=("a",), stores=STORES)),
        NodeTask(node=replace(NODE, rendezvous=Static(master_addr="a", master_port=1, id="r"))),
    ],
)
def test_a_task_is_read_back_as_it_was_written(task):
    assert parse_task(task.to_json()) == task


@pytest.mark.parametrize("change", [{"schema": 2}, {"settings": {"start": "thread"}}])
def test_a_task_of_another_kind_is_refused(change):
    data = {**json.loads(NodeTask(node=NODE).to_json()), **change}
    with pytest.raises(InputError, match="cannot be read"):
        parse_task(json.dumps(data))


def test_equal_sources_give_equal_archives_without_the_public_name():
    sources = read_agent_sources()
    data = render_agent_archive(sources)
    assert data == render_agent_archive(dict(reversed(sources.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        assert "_launcher_node/agent/node/supervisor.py" in names
        assert "_launcher_node/agent/membership/client.py" in names
        assert not [name for name in names if name.startswith("launcher/")]
        for name in names:
            assert b"from launcher" not in archive.read(name)
    assert protocol.HEARTBEAT == "LAUNCHER_HEARTBEAT"


def test_only_imports_are_renamed():
    text = 'from launcher import clock\nfrom launcher.errors import Fault\nx = "from launcher"\n'
    assert rename(text) == (
        "from _launcher_node import clock\nfrom _launcher_node.errors import Fault\n"
        'x = "from launcher"\n'
    )
    with pytest.raises(ValueError, match=r"import launcher\.state"):
        rename("import launcher.state\n")


def test_an_abort_of_nccl_s_watchdog_is_told_by_what_it_threw(tmp_path):
    """Its frames follow; the last of them would not say that another rank is gone."""
    said = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread "
        "terminated with exception: NCCL error: NCCLUtils.cpp:77, unhandled system error\n"
    )
    frames = "".join(f"frame #{n}: <unknown function> + 0x43 (libc.so)\n" for n in range(300))
    folder = tmp_path / protocol.RANK_FOLDER.format(rank=1)
    folder.mkdir()
    (folder / protocol.STDERR_FILE).write_text(said + frames)
    aborted = WorkerExit(
        attempt=0, rank=1, local_rank=1, exit_code=-6, failed_at=1.0, was_asked=False
    )
    write_exit(folder, aborted)
    (found,) = read_ends(tmp_path, tmp_path)
    assert found.exception.startswith("c10::DistBackendError: [PG ID 0")
    assert found.is_collateral


def test_a_signal_between_two_stores_ends_the_node_as_one_during_a_round_does():
    handed = signal.getsignal(signal.SIGTERM)
    losses = []

    def lose_store(_: NodeTask) -> Ending:
        # As torch does when it starts workers; its handler stays when they have ended.
        signal.signal(signal.SIGTERM, multiprocessing_api._terminate_process_handler)
        return Ending(cause=Cause.STORE_LOST, detail="gone")

    def on_store_lost(*told: object) -> None:
        losses.append(told)
        os.kill(os.getpid(), signal.SIGTERM)

    node = node_without_group(on_store_lost)
    try:
        task = NodeTask(node=node_plan(), settings=AgentSettings(stores=STORES[1:]))
        ended = Rounds(task, node, SystemClock()).run(lose_store)
    finally:
        signal.signal(signal.SIGTERM, handed)
    assert ended == Ending(cause=Cause.PREEMPTED, detail="the agent got SIGTERM (15)")
    assert len(losses) == 1
    assert not node.had_group, "none around the next store, which has not answered yet"


def node_without_group(on_store_lost: Callable[..., object], number: int = -1) -> Any:
    return SimpleNamespace(
        attempts=SimpleNamespace(number=number),
        token="t",
        roster=None,
        had_group=True,
        on_store_lost=on_store_lost,
        healer=SimpleNamespace(),
    )


@pytest.mark.parametrize(("number", "incarnation"), [(-1, 0), (0, 0), (-1, 1)])
def test_a_node_goes_on_around_the_next_store_until_it_ends_otherwise(
    monkeypatch, number, incarnation
):
    asked, losses = list[bool](), list[tuple[str, int]]()
    node = node_without_group(lambda end, times: losses.append((end.detail, times)), number)
    task = NodeTask(node=node_plan(incarnation=incarnation), settings=AgentSettings(stores=STORES))
    done, fenced = Ending(cause=Cause.COMPLETED, detail="done"), Cause.RENDEZVOUS_CLOSED
    ends = iter([Ending(cause=Cause.STORE_LOST, detail="gone"), Ending(cause=fenced), done])

    def plan_round(*, elsewhere: bool) -> NodeTask:
        asked.append(elsewhere)
        return task

    def run_once(planned: NodeTask) -> Ending:
        assert planned is task
        closed = "fenced" if len(asked) == 2 else ""
        node.roster = SimpleNamespace(status=SimpleNamespace(closed=closed))
        return next(ends)

    made = SimpleNamespace(plan_round=plan_round)
    monkeypatch.setattr(torch_agent, "Candidates", lambda *given: made)
    assert Rounds(task, node, StoppedClock()).run(run_once) == done
    assert asked == [number >= 0 or incarnation > 0, False, True]
    assert losses == [("gone", 1), ("the job goes on around another store", 2)]
    assert node.had_group is False, "it meets in no folder"


@pytest.mark.parametrize(
    ("error", "cause"),
    [(OSError(28, "No space left"), "disk-full"), (OSError("odd"), "rendezvous-unreachable")],
)
def test_a_node_that_comes_to_no_store_ends_and_a_static_one_needs_none(monkeypatch, error, cause):
    def refuse(*, elsewhere: bool) -> NodeTask:
        raise error

    monkeypatch.setattr(torch_agent, "Candidates", lambda *_: SimpleNamespace(plan_round=refuse))
    node, task = node_without_group(print), NodeTask(node=node_plan())
    ended = Rounds(task, node, StoppedClock()).run(lambda _: pytest.fail("it has no store"))
    assert (ended.cause, str(error) in ended.detail) == (cause, True)
    static = replace(
        task, node=replace(task.node, rendezvous=Static(master_addr="a", master_port=1, id="r"))
    )
    assert Rounds(static, node, StoppedClock()).plan_next() is static
