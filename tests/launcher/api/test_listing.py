"""What is told of runs: lists, one run's state, its logs, and what is refused."""

import io
import itertools
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launcher import InputError, RunHandle, TargetError
from launcher.api import listing
from launcher.api.listing import (
    ListedRun,
    RunStatus,
    describe_none,
    find_elsewhere,
    find_going_on,
    list_runs,
    read_status,
    render_status,
    render_table,
    show_logs,
    with_size,
)
from launcher.contract.causes import Cause, NodeState
from launcher.contract.ending import Ending
from launcher.contract.process_stat import is_stopped
from launcher.contract.protocol import LAUNCHER_GONE
from launcher.follow.loop import write_outcome
from launcher.follow.requests import request_stop
from launcher.follow.target import LiveRun, NodeObservation, Observation, Traits
from launcher.runs.failure import FailureReport
from launcher.runs.folder import BORROWED_FILE, RunFolder
from launcher.runs.heals import Heal
from launcher.targets.docker.target import DockerTarget
from tests.launcher.api.conftest import DEAD, mark
from tests.launcher.vitals import leave_vitals
from tests.launcher.worker_ends import worker_end
from tests.waiting import wait_until


def silent(*_: object) -> None:
    raise TargetError("the engine does not answer", "start it")


# -- states -----------------------------------------------------------------------------------


@pytest.fixture
def one_of_each(make_run, on_local, tmp_path):
    """Runs of which each is in another state, by how its launcher and its nodes are."""
    at = time.time() - 200_000
    for name in ("here", "orphan", "foreign", "elsewhere", "silent", "seen-ended"):
        run, _ = make_run(at, name=name, nnodes=2, follows=name == "here")
        if name in ("orphan", "silent", "seen-ended"):
            mark(run, DEAD)
    mark(RunFolder(tmp_path / "elsewhere"), DEAD, "another")
    make_run(at, name="good", ended=Cause.COMPLETED)
    make_run(at, name="held", follows=True, agent={"hold_idle_s": 60.0})
    (make_run(at, name="damaged")[0].path / "plan.json").write_text("{}")
    end = Ending(cause=Cause.STOP_REQUESTED, finished_at=at + 1)
    ends = {"silent": silent, "seen-ended": lambda: end}
    on_local(find_end=lambda target, run, plan: ends.get(run.run_id, lambda: None)())


def render(run: RunFolder) -> str:
    """What ``status`` shows, and what it fails with."""
    status = read_status(run)
    return f"\n{render_status(status)}" + (f"{status.unseen}; {status.fix}\n" if status.fix else "")


def test_runs_are_told_by_how_their_launchers_and_nodes_are(
    one_of_each, on_local, tmp_path, expect_golden
):
    rows = sorted(list_runs(tmp_path, everything=True), key=lambda row: row.run_id)
    told = render_table(rows)
    some = {"not over": list_runs(tmp_path, everything=False), "go on": find_going_on(tmp_path)}
    for name, found in some.items():
        told += f"{name}: {', '.join(sorted(one.run_id for one in found))}\n"
    told += "".join(render(RunFolder(tmp_path / row.run_id)) for row in rows[1:])
    here = RunFolder(tmp_path / "here")
    on_local(observe=silent)
    told += render(here)
    away = TargetError("gpu1 is silent", "ping it")
    on_local(observe_reachable=lambda *_: (Observation(run_id="here", nodes=(NODE,)), away))
    expect_golden("runs.txt", (told + render(here)).replace(str(tmp_path), "RUNS"))
    assert read_status(here).launcher_pid == os.getpid()
    assert read_status(RunFolder(tmp_path / "orphan")).launcher_pid is None


NODE = NodeObservation(node_index=0, incarnation=0, state=NodeState.PENDING)


@pytest.mark.parametrize(
    ("suspended", "ended", "state"),
    [
        (True, None, "suspended"),
        (None, None, "running"),
        (True, Cause.STOP_REQUESTED, "suspended"),
        (None, Cause.STOP_REQUESTED, "stopped"),
    ],
)
def test_a_run_whose_object_is_kept_is_suspended(suspended, ended, state, make_run, on_local):
    kept = SimpleNamespace(is_suspended=lambda: suspended)
    traits = Traits(goes_on_alone=True)
    on_local(find_end=lambda *_: None, suspension=lambda *_: kept, traits=traits)
    run, _ = make_run(ended=ended)
    request_stop(run, keep=True)
    status = read_status(run)
    assert status.state == state
    assert ("  suspended" in str(status).splitlines()) == (state == "suspended" and bool(ended))
    on_local(suspension=lambda *_: None)
    assert read_status(run).state == ("stopped" if ended else "running")


def test_a_run_whose_launcher_is_stopped_goes_on_and_says_so(make_run, on_local):
    run, _ = make_run()
    on_local(observe=lambda *_: Observation(run_id=run.run_id, nodes=()))
    launcher = subprocess.Popen(["sleep", "600"])
    try:
        mark(run, launcher.pid)
        assert read_status(run).launcher_stopped is False
        launcher.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(launcher.pid))
        told = read_status(run)
    finally:
        launcher.kill()
        launcher.wait()
    assert (told.state, told.launcher_stopped) == ("running", True)
    assert f"or kill -CONT {launcher.pid}" in str(told).splitlines()[-1]


def test_a_failure_is_told_in_words_and_as_data(make_run):
    run, _ = make_run(ended=Cause.TRAINING_FAILED)
    failed = worker_end(1, "ValueError: too hot", log="nodes/0/0")
    failure = FailureReport(first=failed, collateral=(), console_tail=())
    run.write_outcome(replace(run.read_outcome(), failure=failure))
    told = read_status(run)
    assert repr(told) == "<RunStatus digits-0a1b2c: failed on local>"
    assert repr(replace(told, nodes=(NODE,))) == f"{repr(told)[:-1]}, 1 nodes>"
    data = json.loads(json.dumps(replace(told, nodes=(NODE,)).to_jsonable()))
    assert (data["nodes"][0]["state"], data["outcome"]["state"]) == ("pending", "failed")
    assert (told.outcome.failure, told.folder) == (failure, str(run.path))
    # The folder of another user's run is gone when the command ends.
    (run.path / BORROWED_FILE).touch()
    told = read_status(run)
    assert told.outcome.failure.first.log == "launcher logs digits-0a1b2c --rank 1"
    assert (told.folder, "folder" in str(told)) == ("", False)


def test_an_empty_list_says_why_it_is_and_ages_have_a_unit_that_fits(
    make_run, tmp_path, expect_golden
):
    ask = [(tmp_path / "none", *of) for of in itertools.product((True, False), repeat=2)]
    make_run(ended=Cause.COMPLETED)
    told = [
        f"{at}, everything {everything}, here {here}: "
        f"{describe_none(at, everything=everything, is_here=here)}"
        for at, everything, here in (*ask, (tmp_path, False, True))
    ]
    ages = (0.4, 119.4, 120.0, 234.0, 7199.0, 7200.0, 172_799.0, 172_800.0, 1e7)
    rows = [ListedRun(run_id=f"{s:,}", state="running", age_s=s, folder="") for s in ages]
    gone = (replace(NODE, state=NodeState.EXITED, exit_code=143, detail=LAUNCHER_GONE),)
    stopped = replace(STATUS, state="running", nodes=gone, launcher_pid=7, launcher_stopped=True)
    elsewhere = replace(stopped, launcher_pid=None, launcher_stopped=False)
    text = "".join((*told, render_table(rows), *map(render_status, (STATUS, stopped, elsewhere))))
    expect_golden(
        "runs-parts.txt", text.replace(str(tmp_path), "RUNS").replace(tmp_path.name, "RUNS")
    )


STATUS = RunStatus(
    run_id="digits-1",
    job="digits",
    target="hosts",
    state="orphaned",
    attempt=1,
    launcher_pid=None,
    launcher_death="",
    folder="/runs/digits-1",
    nodes=(
        replace(NODE, state=NodeState.RUNNING),
        replace(NODE, node_index=1, incarnation=2, exit_code=137, detail="killed"),
    ),
    metrics={"loss": 0.5},
    outcome=None,
    hosts=("gpu1",),
    restarts={"exit": 2},
    heals=(Heal(at=1.0, cause="lost", step=9, num_nodes=2, paused_s=0.731, what="lost"),),
    hold="held",
)


def test_runs_of_other_folders_are_found_where_they_run(make_run, on_local, monkeypatch, tmp_path):
    make_run()
    paths = {"there": tmp_path / "digits-0a1b2c", "gone": tmp_path / "gone", "no folder": ""}
    live = [LiveRun(run_id=name, run_dir=str(at), running_nodes=1) for name, at in paths.items()]
    on_local(live_runs=lambda _: tuple(live))
    monkeypatch.setattr(DockerTarget, "live_runs", silent)
    (tmp_path / "other").mkdir()
    assert find_elsewhere(tmp_path / "other") == live[:1]
    assert find_elsewhere(tmp_path) == []
    monkeypatch.setattr(DockerTarget, "live_runs", lambda _: tuple(live))
    assert find_elsewhere(tmp_path / "other") == [live[0], live[0]]


# -- logs -------------------------------------------------------------------------------------


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def write(run: RunFolder, rank: int, text: str, name: str = "stdout") -> None:
    folder = run.node_dir(rank // 2, 0) / f"attempt-0/rank-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as log:
        log.write(text)


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        ({}, "[0/1] a\n[0/1] b\n[1/2] 1%\r2%\n[1/3] c\n", "[0/1] e\n"),
        ({"agents": True}, "[0/1] a\n[0/1] b\n[1/2] 1%\r2%\n[1/3] c\n", "[0/agent] up\n[0/1] e\n"),
        ({"rank": 1, "agents": True}, "[0/1] a\n[0/1] b\n", "[0/1] e\n"),
        ({"stdout": Terminal}, "[0/1] a\n[0/1] b\n[1/2] 2%\n[1/3] c\n", "[0/1] e\n"),
    ],
)
def test_logs_have_all_ranks_or_one_and_no_bar_on_a_terminal(options, out, err, make_run):
    run, _ = make_run(nnodes=2, nproc_per_node=2, ended=Cause.COMPLETED)
    for rank, text in ((1, "a\nb\n"), (2, "1%\r2%\n"), (3, "c")):
        write(run, rank, text)
    write(run, 1, "e\n", "stderr")
    run.console(0, 0).write_text("up\n")
    options = {"follow": True, "rank": None, "agents": False, "stdout": io.BytesIO, **options}
    streams = options.pop("stdout")(), io.BytesIO()
    show_logs(run, *streams, **options)
    told, errors = (stream.getvalue().decode() for stream in streams)
    assert sorted(told.splitlines(True)) == sorted(out.splitlines(True))
    assert sorted(errors.splitlines()) == sorted(err.splitlines())


@pytest.mark.parametrize(
    ("follow", "launcher", "lines"),
    [
        (True, "here", ["0", "1", "2", "3"]),
        (False, "here", ["0"]),
        (True, "foreign", ["0", "1", "2", "3"]),
        (True, "dead", ["0", "brought True", "1"]),
        (False, "dead", ["0", "brought False", "1"]),
    ],
)
def test_logs_are_followed_as_long_as_more_can_come(
    follow, launcher, lines, make_run, on_local, monkeypatch
):
    run, plan = make_run(follows=launcher == "here", nproc_per_node=1)
    if launcher != "here":
        mark(run, DEAD, "another" if launcher == "foreign" else "")
    write(run, 0, "0\n")
    written = iter(range(1, 9))

    def play(_: float) -> None:
        number = next(written)
        write(run, 0, f"{number}\n")
        if number == 3:
            write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 2.0)

    def bring(target: object, run: RunFolder, plan: object, *, follow: bool):
        write(run, 0, f"brought {follow}\n")
        yield

    monkeypatch.setattr(listing, "time", SimpleNamespace(sleep=play))
    on_local(bring_output=bring)
    told = []
    for line in RunHandle(run.path).logs(follow=follow):
        told.append(line.removeprefix("[0/0] "))
        assert len(told) < 9
    assert told == lines


def test_logs_of_ranks_that_a_run_does_not_have_are_refused(make_run):
    run, plan = make_run(nnodes="1:4", nproc_per_node=1)
    with pytest.raises(InputError, match="--rank 4: digits-0a1b2c has ranks 0 to 3"):
        list(RunHandle(run.path).logs(rank=4))
    for index in range(2):
        (run.node_dir(index, 0) / f"attempt-0/rank-{index}").mkdir(parents=True)
    write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 2.0)
    assert list(RunHandle(run.path).logs(rank=1)) == []
    with pytest.raises(InputError, match="--rank 3: digits-0a1b2c has ranks 0 to 1"):
        list(RunHandle(run.path).logs(rank=3))


def test_sizes_stand_beside_the_runs_that_have_folders_here(tmp_path):
    (tmp_path / "log").write_bytes(bytes(5 << 20))
    here = ListedRun(run_id="here", state="orphaned", age_s=1.0, folder=str(tmp_path))
    rows = [here, ListedRun(run_id="there", state="running", age_s=1.0, folder="")]
    *table, end = render_table([with_size(row) for row in rows]).splitlines()
    assert [line.split("1 s")[-1].strip() for line in table[1:]] == ["5.0 MiB", "-"]
    assert end == "here: its launcher has gone; end it: launcher stop here"
    assert "SIZE" not in render_table(rows)


def test_a_node_that_runs_and_says_nothing_is_told_so(make_run, on_local):
    run, _ = make_run(nnodes=4, follows=True)
    states = [NodeState.RUNNING] * 3 + [NodeState.EXITED]
    nodes = tuple(replace(NODE, node_index=i, state=state) for i, state in enumerate(states))
    on_local(observe=lambda *_: Observation(run_id=run.run_id, nodes=nodes))
    for index, age_s in ((0, 26.0), (1, 9.0), (3, 26.0)):
        leave_vitals(run.node_dir(index, 0), at=time.time() - age_s)
    told, *others = (node.detail for node in read_status(run).nodes)
    assert told.startswith("no sign of life for 2")
    assert others == ["", "", ""]


def test_no_time_is_negative_where_a_clock_was_set_back(make_run, tmp_path):
    later = time.time() + 3600
    run, plan = make_run(later)
    outcome = write_outcome(run, plan, Ending(cause=Cause.COMPLETED), later - 60)
    assert outcome.duration_s == 0.0
    assert [row.age_s for row in list_runs(tmp_path, everything=True)] == [0.0]
    assert list_runs(tmp_path, everything=False) == []
    assert (read_status(run).state, read_status(run).nodes) == ("succeeded", ())
