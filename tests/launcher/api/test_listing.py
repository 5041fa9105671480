"""What is told of runs: lists, one run's state, its logs, and what is refused."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import InputError, RunHandle
from launcher.api import listing
from launcher.api.listing import (
    ListedRun,
    RunStatus,
    list_runs,
    read_status,
    render_status,
    render_table,
    with_size,
)
from launcher.api.programs import plan_shell, run_in_nodes
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.protocol import VITALS_FILE
from launcher.contract.states import NodeState
from launcher.follow.loop import write_outcome
from launcher.follow.target import NodeObservation, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.heals import Heal

MakeRun = Callable[..., tuple[RunFolder, LaunchPlan]]


@pytest.fixture
def make_run(make_plan: Callable[..., LaunchPlan], tmp_path: Path) -> MakeRun:
    """A run with these keys, which this process follows, or nobody."""

    def make(
        at: float = 1.0, *, follows: bool = False, **keys: object
    ) -> tuple[RunFolder, LaunchPlan]:
        plan = replace(make_plan(**keys), run_dir=f"{tmp_path}/digits-0a1b2c")
        run = RunFolder(Path(plan.run_dir))
        run.create(plan, "", at, follows=follows)
        return run, plan

    return make


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


def list_files(run: RunFolder, node: int) -> dict[int, int]:
    return run_in_nodes(run, ("ls",), lambda node, line: None, node)


@pytest.mark.parametrize("enter", [plan_shell, list_files])
def test_a_program_is_only_run_in_a_node_of_a_run_that_goes_on(make_run, enter):
    run, plan = make_run(nnodes=2, follows=True)
    with pytest.raises(InputError, match="node 2: digits-0a1b2c has node 0 to 1"):
        enter(run, 2)
    write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 2.0)
    with pytest.raises(InputError, match=r"has ended \(completed\)"):
        enter(run, 1)


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
