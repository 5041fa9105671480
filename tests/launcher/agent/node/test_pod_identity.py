"""What the agent takes from the pod it runs in, whatever an operator put there."""

import json
from dataclasses import replace

import pytest

from launcher.agent.engine.torch_settings import configure
from launcher.agent.node.identity import SOURCES, claim_incarnation, identify
from launcher.agent.node.supervisor import write_termination
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import NodeOutcome
from launcher.contract.errors import InputError
from launcher.contract.node_plan import (
    AgentSettings,
    Elastic,
    NodePlan,
    NodeTask,
    Static,
    StoreEndpoint,
)
from tests.launcher.node_plans import node_plan
from tests.launcher.worker_ends import worker_end

ELASTIC_WORKER = {"POD_NAME": "digits-worker-1", "POD_IP": "10.1.1.7"}


def node_of(log_dir: str = "/run/nodes/0/0", max_nodes: int = 4) -> NodePlan:
    own = {protocol.NODE_INDEX: 0, protocol.INCARNATION: 0, protocol.MAX_WORLD_SIZE: max_nodes}
    return node_plan(
        {"endpoint_host": "digits-worker-0", "endpoint_port": 29400, "is_host": True},
        name="digits-worker-0",
        local_addr="digits-worker-0",
        min_nodes=min(2, max_nodes),
        max_nodes=max_nodes,
        env=tuple((name, str(value)) for name, value in own.items()),
        log_dir=log_dir,
    )


def task_of(identity: str = "pytorchjob", **node: object) -> NodeTask:
    stores = (
        StoreEndpoint(host="digits-worker-0", port=29400, node_index=0),
        StoreEndpoint(host="digits-worker-1", port=29400, node_index=1),
    )
    settings = AgentSettings(identity=identity, stores=stores)
    return NodeTask(node=node_of(**node), settings=settings)  # type: ignore[arg-type]


def test_another_pod_than_the_first_gets_an_index_address_folder_and_prefix_of_its_own():
    node = identify(task_of(), ELASTIC_WORKER).node
    assert (node.node_index, node.local_addr) == (1, "10.1.1.7")
    assert node.log_dir == "/run/nodes/1/0"
    assert isinstance(node.rendezvous, Elastic)
    assert node.rendezvous.is_host is False
    env = dict(node.env)
    assert env[protocol.NODE_INDEX] == "1"
    assert env[protocol.LINE_PREFIX_TEMPLATE] == "[1/${rank}] "


def test_a_pod_s_name_counts_more_than_its_host_s_which_may_be_the_machine_s():
    assert identify(task_of(), ELASTIC_WORKER).node.node_index == 1
    with pytest.raises(InputError, match="called 'gpu-machine-7'"):
        identify(task_of(), {}, "gpu-machine-7")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"PET_NNODES": "1:8", "PET_NPROC_PER_NODE": "8"}, (1, 8, 8)),
        ({"PET_NNODES": "3", "PET_NPROC_PER_NODE": "2"}, (3, 3, 2)),
        ({"PET_NPROC_PER_NODE": "auto"}, (2, 4, 1)),
        ({"PET_NPROC_PER_NODE": "0"}, (2, 4, 1)),
        ({"PET_NNODES": "many"}, (2, 4, 1)),
        ({}, (2, 4, 1)),
        # Those of the operator count pods; neither is a size of this project's.
        ({"WORLD_SIZE": "7", "PET_RDZV_ENDPOINT": "other:1"}, (2, 4, 1)),
    ],
)
def test_a_job_that_was_resized_since_it_was_planned_runs_in_its_new_size(told, expected):
    node = identify(task_of(), {**ELASTIC_WORKER, **told}).node
    assert (node.min_nodes, node.max_nodes, node.nproc_per_node) == expected
    largest = dict(node.env)[protocol.MAX_WORLD_SIZE]
    assert largest == str(expected[1] * expected[2]), "the training cuts its batches for it"


def test_a_job_planned_for_one_node_cannot_grow_because_its_store_has_no_address():
    with pytest.raises(InputError, match="planned for one node"):
        identify(task_of(max_nodes=1), {**ELASTIC_WORKER, "PET_NNODES": "2"})


@pytest.mark.parametrize("identity", ["plan", "launcher"])
def test_nodes_that_are_no_pods_take_nothing_from_torchrun_s_variables(identity):
    told = {"PET_NNODES": "9", "PET_NPROC_PER_NODE": "9", protocol.NODE_INDEX: "0"}
    node = identify(task_of(identity), told, "host").node
    assert (node.max_nodes, node.nproc_per_node) == (4, 1)


def test_probes_are_answered_at_the_pod_s_address():
    assert identify(task_of(), ELASTIC_WORKER).settings.health_host == "10.1.1.7"
    asked = task_of()
    asked = replace(asked, settings=replace(asked.settings, health_host="0.0.0.0"))
    assert identify(asked, ELASTIC_WORKER).settings.health_host == "0.0.0.0"


def test_each_new_pod_of_a_node_is_its_next_incarnation(tmp_path):
    task = task_of(log_dir=str(tmp_path / "nodes/0/0"))
    taken = [claim_incarnation(task).node for _ in range(3)]
    assert [node.incarnation for node in taken] == [0, 1, 2]
    assert [dict(node.env)[protocol.INCARNATION] for node in taken] == ["0", "1", "2"]
    assert [node.log_dir for node in taken] == [str(tmp_path / f"nodes/0/{n}") for n in range(3)]


def test_a_node_with_a_plan_of_its_own_keeps_the_incarnation_it_was_planned_with(tmp_path):
    task = task_of("plan", log_dir=str(tmp_path / "nodes/0/0"))
    assert claim_incarnation(task) is task
    assert not (tmp_path / "nodes").exists()


def test_every_source_of_pods_is_one_that_is_known():
    for identity in (name for name, source in SOURCES.items() if source.is_pod):
        told = {**ELASTIC_WORKER, "PET_NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2"}
        assert identify(task_of(identity), told).node.node_index == 2


def outcome_of(message: str, others: int) -> NodeOutcome:
    return NodeOutcome(
        node_index=0,
        incarnation=0,
        cause=Cause.TRAINING_FAILED,
        detail="d",
        started_at=0.0,
        finished_at=1.0,
        first=worker_end(0, message),
        collateral=tuple(worker_end(rank, "m") for rank in range(1, 1 + others)),
    )


@pytest.mark.parametrize(
    ("others", "message", "has_first", "collateral"),
    [(1, "m", True, 1), (999, "m", True, 0), (0, "m" * 5000, False, 0), (0, "é" * 2000, False, 0)],
)
def test_a_pod_s_status_gets_as_much_of_the_outcome_as_it_holds(
    others, message, has_first, collateral
):
    text = outcome_of(message, others).to_short_json(4096)
    assert len(text.encode()) <= 4096
    told = json.loads(text)
    assert told["cause"] == "training-failed"
    assert (told["first"] is not None) == has_first
    assert len(told["collateral"]) == collateral


def test_a_termination_message_replaces_what_was_there_and_needs_a_place(tmp_path):
    outcome = outcome_of("m", 0)
    write_termination(outcome, tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    place = tmp_path / "termination-log"
    place.write_text("x" * 5000)
    write_termination(outcome, place)
    assert place.read_text() == outcome.to_json()


def test_the_node_of_rank_0_of_a_static_group_knows_that_it_serves_the_store():
    static = Static(master_addr="a", master_port=1, id="digits")
    task = NodeTask(node=replace(node_of(), rendezvous=static))
    # torch compares it with the number 0.
    assert configure(task.node) == {"rank": 0}
