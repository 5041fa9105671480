"""Whole plans, as ``plan.json`` holds them: ``golden/plans.txt``."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import launcher.plan
from launcher.code.place import CodePlace
from launcher.contract.errors import InputError
from launcher.contract.node_plan import AgentSettings
from launcher.job.spec import JobSpec
from launcher.plan.agent_task import Purpose
from launcher.plan.launch_plan import (
    LaunchPlan,
    new_run_id,
    parse_plan,
    plan_moved,
    plan_next_attempt,
    plan_replacement,
    plan_run,
)
from launcher.plan.nodes import plan_node_like
from launcher.plan.target_facts import RUN_ID, Folders, MachineFacts, NodeFacts, TargetFacts
from launcher.plan.target_settings import TargetSettings
from launcher.plan.torchrun import describe_loss
from tests.launcher.conftest import DOCKER, LOCAL
from tests.launcher.values import by_place, changeable

BARE = replace(LOCAL, own=None, run_root="/runs", cwd="/home/me")
CONTAINERS = replace(DOCKER, own=None)
CODE = CodePlace(root=Path("/home/me/code"), inner="src", command=("t.py",))
FOLDERS = Folders(run=f"/there/{RUN_ID}", checkpoints=f"/kept/{RUN_ID}", cwd=f"/c/{RUN_ID}")
HOSTS = replace(
    BARE,
    target="places",
    shares_storage=False,
    terminal=True,
    nodes=tuple(
        NodeFacts(
            name=f"gpu{number}",
            machine=MachineFacts(cpu_count=number, address=f"10.0.0.{number}", interface="eth1"),
            folders=FOLDERS if number == 1 else replace(FOLDERS, code=f"/code/{RUN_ID}"),
        )
        for number in (1, 2)
    ),
)
PODS = replace(
    CONTAINERS,
    machine=replace(DOCKER.machine, loopback=None),
    ports=(),
    agent_in_image=True,
    agent=AgentSettings(identity="operator", meet_dir=f"/shared/{RUN_ID}", awaits_nodes=True),
    nodes=(NodeFacts(folders=replace(FOLDERS, in_container=True, code="/code")),) * 2,
)
CUDA = replace(
    BARE,
    accelerator="cuda",
    machine=MachineFacts(cpu_count=8, device_ids=("0", "1", "2", "3")),
    ports=(1000, 1001, 1002, 1003),
)
ALL_KEYS: dict[str, Any] = {
    "max_restarts": 2,
    "stop_grace_s": 7,
    "torch_version": "2.9",
    "env": {"OMP_NUM_THREADS": "4", "A": "1"},
    "secrets": ["TOKEN", "KEY"],
    "mounts": ["./data:/data:ro"],
    "workdir": "/w",
    "checkpoint_dir": "kept",
    "resources": {"cpus": 2, "memory": "2Gi", "shm": "3Gi", "rdma": True},
    "agent": {"detection_limit_s": 5, "same_failure_limit": 4, "health": {"port": 80}},
    "notify": {"command": "mail", "restarts": 3},
}
PLANS: dict[str, tuple[TargetFacts, dict[str, Any], dict[str, Any]]] = {
    "one local node": (BARE, {}, {}),
    "static nodes under torchrun": (BARE, {"nnodes": 2, "engine": "torchrun"}, {}),
    "elastic nodes with GPUs": (CUDA, {"nnodes": "1:4"}, {}),
    "a node with all keys": (
        CONTAINERS, ALL_KEYS, {"place": CODE, "code_hash": "abc", "detached": True},
    ),
    "a copy of the code": (BARE, {}, {"place": replace(CODE, is_copy=True)}),
    "code that is used where it is": (BARE, {"workdir": "sub"}, {"place": CODE}),
    "a hold": (
        CONTAINERS, {"checkpoint_dir": "/kept/digits-0a1b2c", "resources": {"gpus": 0}},
        {"purpose": Purpose(hold_idle_s=60.0)},
    ),
    "a hold that keeps checkpoints elsewhere": (
        CONTAINERS, {"checkpoint_dir": "/kept/all"}, {"purpose": Purpose(hold_idle_s=60.0)},
    ),
    "a rank to debug": (
        BARE, {"nproc_per_node": 2, "start": "fork", "agent": {"preload": ["numpy"]}},
        {"purpose": Purpose(debug_rank=1, debug_editor=True)},
    ),
    "hosts with folders of their own": (HOSTS, {"nnodes": "1:4"}, {"place": CODE}),
    "pods": (PODS, {"nnodes": 2}, {"place": CODE}),
}  # fmt: skip


def planned(name: str) -> LaunchPlan:
    facts, fields, options = PLANS[name]
    job = JobSpec.model_validate({"name": "digits", "command": ["t.py", "--lr", "1"], **fields})
    return plan_run(job, facts, run_id="digits-0a1b2c", **options)


def test_whole_plans(expect_golden):
    plans = {name: planned(name) for name in PLANS}
    plans["a new attempt"] = plan_next_attempt(plan_next_attempt(plans["elastic nodes with GPUs"]))
    plans["a replacement"] = plan_replacement(plans["elastic nodes with GPUs"], 0)
    plans["moved"] = plan_moved(plans["hosts with folders of their own"], {0: "10.0.1.1"})
    plans["output on consoles"] = plans["one local node"].with_output_on_consoles()
    for plan in plans.values():
        assert parse_plan(plan.to_json()) == plan
    text = "".join(f"### {name}\n{plan.to_json()}" for name, plan in plans.items())
    expect_golden("plans.txt", text)


def test_what_a_plan_leaves_out_means_what_it_meant(expect_golden):
    """A default that changes is read wrongly out of the plans of runs that run already."""
    kept = ("run_id", "job_name", "target", "run_dir", "checkpoint_dir", "stop_grace_s", "nodes")
    data = json.loads(planned("one local node").to_json())
    text = json.dumps({name: data[name] for name in ("schema", *kept)} | {
        "resources": {"accelerator": "cpu", "shm_bytes": 1},
        "code": {"root": "/"},
        "notify": {},
    })  # fmt: skip
    read = asdict(parse_plan(text)) | {"nodes": []}
    read["machine"] = asdict(MachineFacts(cpu_count=1))
    lines = (f"{name} {json.dumps(value)}\n" for name, value in read.items())
    expect_golden("plan-defaults.txt", "".join(lines))


def test_what_is_planned_is_a_value_and_is_built_by_name():
    assert (changeable(launcher.plan), by_place(launcher.plan)) == (set(), set())


@pytest.mark.parametrize(("count", "last"), [(1, "0"), (10, "9"), (11, "10"), (101, "100")])
def test_names_sort_as_their_nodes_do(make_plan, count, last):
    names = [n.name for n in make_plan(CONTAINERS, nnodes=count, nproc_per_node=1).nodes]
    assert names == sorted(names)
    assert names[-1] == f"digits-0a1b2c-{last}"
    assert names[0] == f"digits-0a1b2c-{'0' * len(last)}"


def test_a_node_like_another_serves_the_store_only_in_its_place(make_plan):
    first, second = make_plan(CONTAINERS, nnodes=2).nodes
    for node, index, hosts in ((first, 0, True), (first, 1, False), (second, 0, False)):
        like = plan_node_like(node, index, "other", 2)
        assert (like.rendezvous.is_host, like.name, like.local_addr) == (hosts, "other", "other")
        assert (like.node_index, like.incarnation) == (index, 2)
    local = make_plan(BARE, nnodes=2).nodes[0]
    assert plan_node_like(local, 1, "other").local_addr == "127.0.0.1"
    assert plan_node_like(local, 1, "other").incarnation == 0


@pytest.mark.parametrize(
    ("rank", "fields", "told"),
    [
        (4, {"nnodes": 2, "nproc_per_node": 2}, "--debug 4: the run has rank 0 to 3"),
        (2, {"nproc_per_node": 2}, "--debug 2: the run has rank 0 to 1"),
        (1, {"nproc_per_node": 1}, "--debug 1: the run has rank 0 alone"),
        (0, {"engine": "torchrun"}, "connects no terminal"),
    ],
)
def test_a_rank_that_cannot_be_debugged_is_refused(make_job, rank, fields, told):
    with pytest.raises(InputError, match=told):
        plan_run(make_job(**fields), BARE, run_id="r", purpose=Purpose(debug_rank=rank))


def test_a_plan_in_words(make_plan):
    elastic, fixed = make_plan(nnodes="1:2", max_restarts=1), make_plan(nnodes=2, max_restarts=1)
    assert (elastic.is_elastic, fixed.is_elastic, fixed.max_restarts) == (True, False, 1)
    sizes = [(p.min_nodes, p.max_nodes, p.nproc_per_node) for p in (elastic, fixed)]
    assert sizes == [(1, 2, 4), (2, 2, 4)]
    assert (elastic.accelerator, elastic.place) == ("cpu", "local")
    assert describe_loss(make_plan()) == "ends the run, as max_restarts is 0"
    assert describe_loss(elastic).startswith("starts all again if it is node 0, else ")
    assert describe_loss(fixed) == "starts all again, which uses up a restart"
    assert (fixed.machines, replace(fixed, own=None).machines) == ((), ())
    own = TargetSettings()
    assert (own.own_python, own.keeps_nodes, own.machines, own.hold) == ("", "", (), "")
    ids = {new_run_id("digits") for _ in range(20)}
    assert len(ids) == 20
    assert {len(one) for one in ids} == {len("digits-0a1b2c")}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (BARE, "local, no GPU: gloo, 8 CPU cores"),
        (replace(BARE, place="here"), "here, no GPU: gloo, 8 CPU cores"),
        (replace(BARE, machine=MachineFacts(cpu_count=1)), "local, no GPU: gloo, 1 CPU core"),
        (CUDA, "local, 4 GPUs, NCCL"),
        (replace(CUDA, nodes=(NodeFacts(machine=CUDA.machine),) * 2), "local, 8 GPUs, NCCL"),
        (replace(CUDA, nodes=(NodeFacts(),) * 2), "local, 4 GPUs, NCCL"),
        (replace(CUDA, machine=MachineFacts(cpu_count=1, device_ids=None)), "local, GPUs, NCCL"),
    ],
)
def test_a_target_in_words(facts, told):
    assert facts.describe() == told
