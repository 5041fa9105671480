"""What is told of runs: lists, one run's state, its logs, and what is refused."""

import io
import json
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
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.protocol import VITALS_FILE
from launcher.contract.states import NodeState
from launcher.follow.loop import write_outcome
from launcher.follow.requests import request_stop
from launcher.follow.target import LiveRun, NodeObservation, Observation, Traits
from launcher.runs.failure import FailureReport
from launcher.runs.folder import BORROWED_FILE, RunFolder
from launcher.runs.heals import Heal
from launcher.targets.docker.target import DockerTarget
from tests.launcher.api.conftest import mark
from tests.launcher.worker_ends import worker_end

DEAD = 2**22 + 1
"""No process has this number."""


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
    ends = {"silent": silent, "seen-ended": lambda: Ending(cause=Cause.NODE_LOST)}
    on_local(find_end=lambda target, run, plan: ends.get(run.run_id, lambda: None)())


def test_a_list_tells_each_runs_state_and_what_ends_the_nodes_of_a_dead_launcher(
    one_of_each, tmp_path
):
    rows = list_runs(tmp_path, everything=True)
    *lines, end = render_table(sorted(rows, key=lambda row: row.run_id)).splitlines()
    assert [line.split() for line in lines] == [
        ["RUN", "TARGET", "NODES", "STATE", "CAUSE", "AGE"],
        ["damaged", "0", "unreadable", "2", "d"],
        ["elsewhere", "local", "2", "running", "2", "d"],
        ["foreign", "local", "2", "running", "2", "d"],
        ["good", "local", "1", "succeeded", "completed", "2", "d"],
        ["held", "local", "1", "held", "held", "by", "somebody,", "free", "2", "d"],
        ["here", "local", "2", "running", "2", "d"],
        ["orphan", "local", "2", "orphaned", "2", "d"],
        ["seen-ended", "local", "2", "failed", "node-lost", "2", "d"],
        ["silent", "local", "2", "unknown", "2", "d"],
    ]
    assert end == "orphan: its launcher has gone; end it: launcher stop orphan"
    over = {row.run_id for row in rows} - {
        row.run_id for row in list_runs(tmp_path, everything=False)
    }
    assert over == {"good", "seen-ended"}
    assert {run.run_id for run in find_going_on(tmp_path)} == {
        "elsewhere",
        "foreign",
        "here",
        "orphan",
    }


@pytest.mark.parametrize(
    ("name", "pid", "death", "last"),
    [
        ("orphan", None, True, "; end it: launcher stop orphan"),
        ("elsewhere", None, False, "  folder: {}/elsewhere"),
        ("held", True, False, "  folder: {}/held"),
        ("good", None, False, "  folder: {}/good"),
    ],
)
def test_a_status_says_who_follows_the_run(name, pid, death, last, one_of_each, tmp_path):
    status = read_status(RunFolder(tmp_path / name))
    assert (status.launcher_pid is not None) == bool(pid)
    assert bool(status.launcher_death) == death
    assert status.hold == ("held by somebody, free" if name == "held" else "")
    told = render_status(status).splitlines()
    assert told[-1].endswith(last.format(tmp_path))
    assert ("  held by somebody, free" in told) == (name == "held")


def test_a_status_says_what_is_not_seen_and_what_helps(one_of_each, on_local, tmp_path):
    seen = Observation(run_id="here", nodes=(node_of(),))
    for name in ("silent", "here"):
        on_local(observe=silent)
        status = read_status(RunFolder(tmp_path / name))
        told = (status.nodes, status.unseen, status.fix)
        assert told == ((), "the engine does not answer", "start it")
    on_local(observe_reachable=lambda *_: (seen, TargetError("gpu1 is silent", "ping it")))
    status = read_status(RunFolder(tmp_path / "here"))
    assert (status.nodes, status.unseen, status.fix) == (seen.nodes, "gpu1 is silent", "ping it")


def node_of(**fields: object) -> NodeObservation:
    given = {"node_index": 0, "incarnation": 0, "state": NodeState.PENDING}
    return NodeObservation(**{**given, **fields})  # type: ignore[arg-type]


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


def test_a_failure_is_told_in_words_and_as_data(make_run):
    run, _ = make_run(ended=Cause.TRAINING_FAILED)
    failed = worker_end(1, "ValueError: too hot", log="nodes/0/0")
    failure = FailureReport(first=failed, collateral=(), console_tail=())
    run.write_outcome(replace(run.read_outcome(), failure=failure))
    told = read_status(run)
    assert repr(told) == "<RunStatus digits-0a1b2c: failed on local>"
    assert repr(replace(told, nodes=(node_of(),))) == f"{repr(told)[:-1]}, 1 nodes>"
    data = json.loads(json.dumps(replace(told, nodes=(node_of(),)).to_jsonable()))
    assert (data["nodes"][0]["state"], data["outcome"]["state"]) == ("pending", "failed")
    assert (told.outcome.failure, told.folder) == (failure, str(run.path))
    # The folder of another user's run is gone when the command ends.
    (run.path / BORROWED_FILE).touch()
    told = read_status(run)
    assert told.outcome.failure.first.log == "launcher logs digits-0a1b2c --rank 1"
    assert (told.folder, "folder" in str(told)) == ("", False)


@pytest.mark.parametrize(
    ("runs", "options", "told"),
    [
        (0, {"everything": True, "is_here": True}, "no runs in {}\n  fix: cd to the folder"),
        (0, {"everything": False, "is_here": True}, "no runs in {}\n  fix: cd to the folder"),
        (1, {"everything": False, "is_here": True}, "no runs go on; those that ended: launcher ps"),
        (0, {"everything": True, "is_here": False}, "no runs\n"),
        (0, {"everything": False, "is_here": False}, "no runs go on; those that ended: launcher"),
    ],
)
def test_an_empty_list_says_why_it_is(runs, options, told, make_run, tmp_path):
    for _ in range(runs):
        make_run(ended=Cause.COMPLETED)
    assert describe_none(tmp_path, **options).startswith(told.format(tmp_path))


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


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (234.0, "3 min"),
        (7199.0, "119 min"),
        (7200.0, "2 h"),
        (172_799.0, "47 h"),
        (172_800.0, "2 d"),
        (1e7, "115 d"),
    ],
)
def test_the_age_of_a_run_has_a_unit_that_fits(age_s, shown):
    row = ListedRun(run_id="tiny-1", state="running", age_s=age_s, folder="")
    assert render_table([row]).splitlines()[1].endswith(f" {shown}")


def test_sizes_stand_beside_the_runs_that_have_folders_here(tmp_path):
    (tmp_path / "log").write_bytes(bytes(5 << 20))
    here = ListedRun(run_id="here", state="orphaned", age_s=1.0, folder=str(tmp_path))
    rows = [here, ListedRun(run_id="there", state="running", age_s=1.0, folder="")]
    *table, end = render_table([with_size(row) for row in rows]).splitlines()
    assert [line.split("1 s")[-1].strip() for line in table[1:]] == ["5.0 MiB", "-"]
    assert end == "here: its launcher has gone; end it: launcher stop here"
    assert "SIZE" not in render_table(rows)


def test_a_run_is_told_with_its_nodes_and_what_they_reported():
    nodes = (
        NodeObservation(node_index=0, incarnation=0, state=NodeState.RUNNING),
        NodeObservation(
            node_index=1, incarnation=2, state=NodeState.EXITED, exit_code=137, detail="killed"
        ),
    )
    status = RunStatus(
        run_id="digits-1",
        job="digits",
        target="hosts",
        state="orphaned",
        attempt=1,
        launcher_pid=None,
        launcher_death="no process 7",
        folder="/runs/digits-1",
        nodes=nodes,
        metrics={"loss": 0.5},
        outcome=None,
        hosts=("gpu1",),
        restarts={"exit": 2},
        heals=(Heal(at=1.0, cause="lost", step=9, num_nodes=2, paused_s=0.731, what="lost"),),
        hold="held",
    )
    assert render_status(status).splitlines() == [
        "digits-1: ORPHANED on hosts (2 starts of all nodes)",
        "  held",
        "  healed       without a restart once, paused 0.73 s",
        "  restarts     exit 2 (over all nodes)",
        "  node 0 on gpu1: running",
        "  node 1, started 3 times: exited, exit code 137, SIGKILL (9); killed",
        "  loss: 0.5",
        "  folder: /runs/digits-1",
        "  its launcher has died (no process 7); end it: launcher stop digits-1",
    ]


@pytest.mark.parametrize(
    ("state", "age_s", "told"),
    [
        (NodeState.RUNNING, 26.0, "no sign of life for 26 s"),
        (NodeState.RUNNING, 9.0, ""),
        (NodeState.RUNNING, None, ""),
        (NodeState.EXITED, 26.0, ""),
    ],
)
def test_a_node_that_runs_and_says_nothing_is_told_so(state, age_s, told, make_run, monkeypatch):
    run, _ = make_run(nnodes=1, follows=True)
    node = NodeObservation(node_index=0, incarnation=0, state=state)
    seen = Observation(run_id=run.run_id, nodes=(node,))
    target = SimpleNamespace(observe_reachable=lambda plan: (seen, None))
    monkeypatch.setattr(listing, "target_of", lambda *_: target)
    if age_s is not None:
        folder = run.node_dir(0, 0)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / VITALS_FILE).write_text(json.dumps({"at": time.time() - age_s}))
    assert [one.detail for one in read_status(run).nodes] == [told]


def test_no_time_is_negative_where_a_clock_was_set_back(make_run, tmp_path):
    later = time.time() + 3600
    run, plan = make_run(later)
    outcome = write_outcome(run, plan, Ending(cause=Cause.COMPLETED), later - 60)
    assert outcome.duration_s == 0.0
    assert [row.age_s for row in list_runs(tmp_path, everything=True)] == [0.0]
    assert list_runs(tmp_path, everything=False) == []
    assert (read_status(run).state, read_status(run).nodes) == ("succeeded", ())
