"""How the nodes of one start agree on a run, and what the run's folder tells of it later."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.node.identity import take_incarnation
from launcher.contract import protocol
from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import Clock
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import InputError, TargetError
from launcher.follow.loop import fold
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.plan.nnodes import decide_nnodes
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.processes import ProcessSettings
from launcher.targets.starter import node as node_module
from launcher.targets.starter.node import (
    PLAN_LIMIT_S,
    STALE_LIMIT_S,
    StartedNode,
    name_run,
)
from launcher.targets.starter.plan import env_of_node, nodes_of, plan_facts
from launcher.targets.starter.starters import NodePlace
from launcher.targets.starter.target import SILENT_S, StarterTarget
from tests.waiting import StoppedClock

HERE = TargetFacts(
    target="starter",
    accelerator="cuda",
    machine=MachineFacts(cpu_count=2, device_ids=("0", "1")),
    torch_version="2.13.0",
    run_root="/runs",
    cwd="/home/me",
    ports=(29400,),
    own=ProcessSettings(python="/opt/python"),
)


def place(**fields: Any) -> NodePlace:
    return NodePlace(**{"starter": "srun", "index": 0, "nodes": 2, "job": "77.0", **fields})


@pytest.fixture
def plan(make_job: Callable[..., JobSpec], tmp_path: Path) -> LaunchPlan:
    job = make_job(nproc_per_node=2)
    job = decide_nnodes(job, nodes_of(job, place()))
    here = replace(HERE, run_root=str(tmp_path))
    return plan_run(job, plan_facts(job, here, place(scheduler="77")), run_id="digits-77.0")


@pytest.fixture
def run(plan: LaunchPlan) -> RunFolder:
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "#!/bin/sh\n", 1000.0)
    return run


@pytest.fixture
def start(make_job, tmp_path, monkeypatch) -> Callable[..., StartedNode]:
    """Starts node 0 or another by hand, on a machine with three GPUs and the job's files."""
    monkeypatch.setattr(node_module, "check_here", lambda node: None)
    monkeypatch.setattr(StarterTarget, "check", lambda self, plan: None)
    monkeypatch.setattr(node_module, "read_gpus", lambda: ("0", "1", "2"))
    job = make_job(nproc_per_node=2, nnodes=2)

    def start(index: str, clock: Clock | None = None, **env: str) -> StartedNode:
        environ = {protocol.NODE_INDEX: index, "MINE": "1", **env}
        return StartedNode(job, tmp_path, environ, run_id="digits-77.0", clock=clock)

    return start


def put(node: StartedNode, plan: LaunchPlan, run: RunFolder) -> None:
    """As node 0 does once it has planned the run, which may have been started before."""
    (run.path / protocol.JOB_FILE).write_text("a job\n")
    with node.planning():
        node.put(plan, lambda: run, "a job\n")


def test_others_take_the_plan_once_node_0_says_that_it_is_there(start, run, plan):
    first = start("0")
    clock = StoppedClock(1000.0, lambda now: put(first, plan, run) if now > 1005 else None)
    assert start("1", clock).wait_for_plan() == plan
    assert clock.now < 1010


def test_others_give_up_where_node_0_says_nothing(start, run):
    clock = StoppedClock(1000.0)
    with pytest.raises(TargetError, match=r"starts/0\.json within 300 s") as caught:
        start("1", clock).wait_for_plan()
    assert "--runs DIR on a shared file system" in caught.value.hint
    assert clock.now <= 1000 + PLAN_LIMIT_S + 1


def fail(node: StartedNode, error: BaseException) -> None:
    with pytest.raises(type(error)), node.planning():
        raise error


def test_an_error_of_an_earlier_start_of_that_name_does_not_count(start, run, plan):
    first = start("0")
    fail(first, InputError("of yesterday", ""))

    def begin(now: float) -> None:
        if now > 1000 + STALE_LIMIT_S / 2:
            put(first, plan, run)

    assert start("1", StoppedClock(1000.0, begin)).wait_for_plan() == plan


@pytest.mark.parametrize(
    ("given", "job", "found"),
    [
        (None, "77.0", "digits-77.0"),
        ("a_b.c-1", "", "a_b.c-1"),
        (None, "", "srun gives no job id, so the nodes cannot agree on a run id"),
        ("a/b", "77.0", "--run-id a/b: letters, digits, points and dashes make an id"),
    ],
)
def test_a_run_is_named_by_a_person_or_by_its_job(given, job, found):
    if " " not in found:
        assert name_run("digits", place(job=job), given) == found
        return
    with pytest.raises(InputError, match=found) as caught:
        name_run("digits", place(job=job), given)
    assert ("--run-id a-b" if given else "--run-id digits-$(date +%s)") in caught.value.hint


def test_all_starts_of_a_job_have_one_run_and_files_of_their_own(make_job, tmp_path):
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
    environ = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", **step}
    again = {**environ, "SLURM_RESTART_COUNT": "1"}
    first, second = (StartedNode(make_job(), tmp_path, env) for env in (environ, again))
    assert first.run.path == second.run.path == tmp_path / "digits-77.0"
    assert [first.ready.name, second.stop.name] == ["77.0-0.json", "77.0-1.stop"]


def test_only_the_same_job_goes_on_in_a_run(start, run, plan, make_job, tmp_path):
    path, node = run.path / protocol.JOB_FILE, start("0")
    put(node, plan, run)
    with pytest.raises(InputError, match="with another job or other options"):
        node.put(plan, lambda: run, "another\n")
    path.unlink()
    with pytest.raises(InputError, match="with another job or other options"):
        node.put(plan, lambda: run, "a job\n")
    # The id of an mpirun without a scheduler may be that of an earlier one.
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_NAMESPACE": "77.0"}
    mpi |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(InputError, match="already exists and belongs to another run"):
        StartedNode(make_job(), tmp_path, mpi).put(plan, lambda: run, "a job\n")


@pytest.mark.parametrize(
    ("nnodes", "nodes", "found"),
    [(None, 4, "4"), (4, 4, "4"), ("2:8", 4, "2:4"), ("2:8", 8, "2:8"), (4, None, "4")],
)
def test_a_job_has_as_many_nodes_as_were_started(make_job, nnodes, nodes, found):
    job = make_job(nnodes=nnodes) if nnodes else make_job()
    assert str(decide_nnodes(job, nodes_of(job, place(nodes=nodes))).nnodes) == found


@pytest.mark.parametrize(("nnodes", "nodes"), [(4, 2), (1, 2), ("3:8", 2), ("1:2", 4)])
def test_another_number_than_the_job_has_is_an_error_with_the_fix(make_job, nnodes, nodes):
    job = make_job(nnodes=nnodes)
    there = nodes_of(job, place(nodes=nodes))
    said = f"the job has nnodes {nnodes}, and srun started"
    with pytest.raises(InputError, match=said) as caught:
        decide_nnodes(job, there)
    assert f"--nnodes {nodes}" in caught.value.hint


@pytest.mark.parametrize(
    ("keys", "where", "words"),
    [
        ({}, {"nodes": None}, "srun does not tell how many nodes there are"),
        ({"nnodes": 2}, {"nodes": None, "index": 2}, "nnodes: 2, but this is node 2"),
        ({}, {"index": 3}, "nnodes: 2, but this is node 3"),
    ],
)
def test_a_node_that_the_job_does_not_have_is_an_error(make_job, keys, where, words):
    with pytest.raises(InputError, match=words):
        nodes_of(make_job(**keys), place(**where))


def test_each_node_gets_its_own_index_and_gpus(plan):
    env = env_of_node(plan, 1, "gpu2", ("4", "5", "6"))
    assert (env[protocol.NODE_INDEX], env["CUDA_VISIBLE_DEVICES"]) == ("1", "4,5")
    for gpus in ((), ("4",)):
        words = rf"node 1 \(gpu2\) has {len(gpus)} GPUs, and .* for 2"
        with pytest.raises(InputError, match=words) as caught:
            env_of_node(plan, 1, "gpu2", gpus)
        assert caught.value.hint.endswith("or --nproc-per-node 1")


def claim_incarnation(run: RunFolder, index: int) -> None:
    """As the node's agent does at its start."""
    take_incarnation(run.node_dir(index, 0).parent)


def end_node(
    run: RunFolder, index: int, cause: Cause, incarnation: int = 0, detail: str = ""
) -> Path:
    outcome = NodeOutcome(
        detail=detail,
        node_index=index,
        incarnation=incarnation,
        cause=cause,
        started_at=1000.0,
        finished_at=1000.0,
    )
    path = run.node_dir(index, incarnation) / protocol.OUTCOME_FILE
    path.write_text(outcome.to_json())
    return path


def show_life(run: RunFolder, index: int, incarnation: int = 0) -> Path:
    """As the node's agent does every few seconds."""
    path = run.node_dir(index, incarnation) / protocol.ALIVE_FILE
    path.touch()
    return path


def age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


def read_states(run_root: Path, plan: LaunchPlan) -> list[NodeState]:
    return [node.state for node in StarterTarget(run_root).observe(plan).nodes]


@pytest.mark.parametrize("has_agent", [True, False])
def test_a_node_without_an_outcome_has_ended_once_the_others_have(run, plan, tmp_path, has_agent):
    for index in (0, 1):
        claim_incarnation(run, index)
    # Before its agent runs, its folder is the last sign of life.
    sign = run.node_dir(1, 0)
    if has_agent:
        age(sign, SILENT_S + 1)
        sign = show_life(run, 1)
    age(sign, SILENT_S + 1)
    assert read_states(tmp_path, plan) == [NodeState.RUNNING, NodeState.RUNNING]
    end_node(run, 0, Cause.PREEMPTED)
    assert read_states(tmp_path, plan) == [NodeState.EXITED, NodeState.EXITED]
    assert StarterTarget(tmp_path).find_end(run, plan) is not None
    # It may be about to write its own.
    os.utime(sign)
    assert read_states(tmp_path, plan) == [NodeState.EXITED, NodeState.RUNNING]
    assert StarterTarget(tmp_path).find_end(run, plan) is None
    assert not [path for path in run.path.iterdir() if path.name.startswith("tmp")]


@pytest.mark.parametrize(
    ("ends", "detail", "cause"),
    [
        ((Cause.PREEMPTED, Cause.PREEMPTED), "", Cause.PREEMPTED),
        ((Cause.PREEMPTED, Cause.TRAINING_FAILED), "", Cause.TRAINING_FAILED),
        # The other one was killed just before it could tell that the run had finished.
        ((Cause.COMPLETED, None), "", Cause.COMPLETED),
        # The one that is left did not see the end of the run.
        ((Cause.COMPLETED, None), protocol.OTHERS_GO_ON, Cause.LAUNCHER_LOST),
    ],
)
def test_nodes_say_why_a_run_ended_that_no_launcher_follows(
    run, plan, tmp_path, ends, detail, cause
):
    for index, told in enumerate(ends):
        claim_incarnation(run, index)
        if told is None:
            age(run.node_dir(index, 0), SILENT_S + 1)
        else:
            end_node(run, index, told, detail=detail)
    end = StarterTarget(tmp_path).find_end(run, plan)
    assert end is not None
    assert end.cause is cause


def test_nodes_that_show_life_go_on_long_after_another_has_left(run, plan, tmp_path):
    for index in (0, 1):
        claim_incarnation(run, index)
        show_life(run, index)
    # A node's clock counts as little as this machine's: it wrote that it ended decades ago.
    age(end_node(run, 0, Cause.PREEMPTED), 3600)
    assert read_states(tmp_path, plan) == [NodeState.EXITED, NodeState.RUNNING]
    assert fold(run, StarterTarget(tmp_path), 1000.0) is None
    assert run.read_outcome() is None


@pytest.mark.parametrize("waited_s", [0, SILENT_S + 1])
def test_ends_of_an_earlier_start_do_not_end_a_run_that_goes_on(
    start, run, plan, tmp_path, waited_s
):
    for index in (0, 1):
        claim_incarnation(run, index)
        age(show_life(run, index), 7200)
        age(end_node(run, index, Cause.PREEMPTED), 7200)
    put(start("0"), plan, run)
    assert read_states(tmp_path, plan) == [NodeState.RUNNING, NodeState.RUNNING]
    claim_incarnation(run, 0)
    # Its agent may wait for room on a disk before it shows life.
    age(run.node_dir(0, 1), waited_s)
    assert read_states(tmp_path, plan) == [NodeState.RUNNING, NodeState.RUNNING]
    assert fold(run, StarterTarget(tmp_path), 1000.0) is None
    assert run.read_outcome() is None


def test_node_0_makes_the_run_and_all_become_agents_of_it(start, plan, monkeypatch):
    became, run = [], RunFolder(Path(plan.run_dir))
    monkeypatch.setattr(node_module.children, "become", lambda *of, **env: became.append((of, env)))
    first, second = start("0"), start("1")
    with first.planning():
        first.put(plan, lambda: run.create(plan, "#!/bin/sh\n", 1000.0), "a job\n")
    assert first.wait_for_plan() == second.wait_for_plan() == plan
    assert first.tell(plan) == [f"run digits-77.0: {plan.size}; folder {run.path}"]
    assert second.tell(plan) == []
    second.become(plan)
    ((argv,), more) = became[0]
    assert argv == ("/opt/python", f"{run.path}/agent.pyz", str(second.ready))
    own = {protocol.NODE_INDEX: "1", "CUDA_VISIBLE_DEVICES": "0,1", "MINE": "1"}
    assert more["env"].items() >= {**own, protocol.STOP_FILE: str(second.stop)}.items()
    assert more["cwd"] == plan.nodes[0].workdir
    assert (run.path / "agent.pyz").exists()


@pytest.mark.parametrize(
    ("error", "told"), [(InputError("gone.py", "see"), "gone.py"), (KeyError("x"), "KeyError: 'x'")]
)
def test_what_keeps_node_0_from_a_plan_ends_the_others_too(start, error, told):
    fail(start("0"), error)
    with pytest.raises(InputError, match=f"node 0 did not start: {told}") as caught:
        start("1", StoppedClock(1000.0)).wait_for_plan()
    assert caught.value.hint == getattr(error, "hint", "")


def test_the_outcome_of_an_earlier_start_is_set_aside_once_node_0_is_there(
    start, run, plan, tmp_path
):
    for index in (0, 1):
        claim_incarnation(run, index)
        end_node(run, index, Cause.PREEMPTED)
    before = fold(run, StarterTarget(tmp_path), 1000.0)
    assert before is not None
    node = start("0")
    put(node, plan, run)
    assert fold(run, StarterTarget(tmp_path), 2000.0) == before
    start("1").prepare(plan)
    assert list(run.path.glob("outcome-*.json")) == []
    node.prepare(plan)
    assert fold(run, StarterTarget(tmp_path), 2000.0) is None
    assert run.read_outcome() is None
    assert (run.path / "outcome-0.json").exists()


def test_the_cores_that_mpirun_took_from_a_node_are_given_back():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert node_module.unbind({}) == []
        told = node_module.unbind({"OMPI_MCA_orte_bound_at_launch": "1"})
        assert os.sched_getaffinity(0) == mine
    finally:
        os.sched_setaffinity(0, mine)
    of_one = f"mpirun bound this node to 1 of its cores; the workers get all {len(mine)}"
    assert told == ([of_one] if len(mine) > 1 else [])


def test_a_stop_that_no_node_answers_says_what_ends_it(start, run, plan, tmp_path):
    node = start("0")
    put(node, plan, run)
    for index in (0, 1):
        claim_incarnation(run, index)
    clock = StoppedClock(1000.0)
    target = StarterTarget(tmp_path, clock=clock)
    seen = node.stop.stat().st_ino
    target.stop(run.run_id, 10)
    assert node.stop.read_text().strip() == Cause.STOP_REQUESTED.value
    # Nodes may see a new file of a network file system a minute late.
    assert node.stop.stat().st_ino == seen
    assert clock.now < 1030
    assert target.notes == [
        "no end reported by node 0, node 1; what still runs ends with srun (job 77)"
    ]


def test_a_run_on_this_target_is_started_and_ended_by_others(make_job, plan, run, tmp_path):
    target = StarterTarget(tmp_path)
    for ask in (
        lambda: target.facts(make_job()),
        lambda: target.submit(plan),
        lambda: target.stop(run.run_id, 0, (1,)),
    ):
        with pytest.raises(InputError, match="somebody else starts") as caught:
            ask()
        assert "launcher node" in caught.value.hint
    target.stop("of-nobody", 10)
    for index in (0, 1):
        claim_incarnation(run, index)
        end_node(run, index, Cause.COMPLETED)
    target.stop(run.run_id, 10)
    assert target.notes == []


def test_nodes_meet_in_the_folder_and_are_checked_where_they_run(make_job, tmp_path, monkeypatch):
    here = replace(HERE, run_root=str(tmp_path))
    monkeypatch.setattr("launcher.targets.starter.target.read_facts", lambda *of: here)
    job, target = make_job(nnodes=2), StarterTarget(tmp_path, place())
    several, alone = target.facts(job), target.facts(make_job(nnodes=1))
    assert several.place == "nodes that srun started"
    assert [len(facts.nodes) for facts in (several, alone)] == [2, 0]
    assert several.agent is not None
    assert several.agent.tee
    for keys, words in (({"secrets": ["NOT_THERE"]}, "NOT_THERE"), ({"workdir": "/gone"}, "/gone")):
        with pytest.raises(InputError, match=words):
            target.check(plan_run(make_job(nnodes=2, **keys), several, run_id="digits-1"))
