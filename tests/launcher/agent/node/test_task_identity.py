"""What a node finds out that an engine of its cluster has started, one process on each node."""

from dataclasses import replace

import pytest

from launcher.agent.addresses import LOOPBACK, choose_address, own_addresses
from launcher.agent.node.identity import claim_incarnation, identify
from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import AgentSettings, NodeTask
from tests.launcher.node_plans import node_plan


def task_of(identity: str = "slurm", *, max_nodes: int = 4, log_dir: str = "/r/0/0") -> NodeTask:
    env = ((protocol.INCARNATION, "0"),)
    node = node_plan(local_addr="-", max_nodes=max_nodes, env=env, log_dir=log_dir)
    return NodeTask(node=node, settings=AgentSettings(identity=identity, meet_dir="/r/meet"))


@pytest.mark.parametrize(
    ("environ", "index"),
    [
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}, 2),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_ARRAY_TASK_ID": "3"}, 3),
        # A person's own array, each element an allocation of two nodes.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_ARRAY_TASK_ID": "3"}, 1),
    ],
)
def test_a_node_under_slurm_has_the_index_of_its_array_element_or_task(environ, index):
    node = identify(task_of(), environ).node
    assert node.node_index == index
    assert node.log_dir == f"/r/{index}/0"
    assert dict(node.env)[protocol.NODE_INDEX] == str(index)


def test_a_node_of_somebody_else_s_starter_is_told_its_index_and_finds_its_address():
    environ = {protocol.NODE_INDEX: "2", "SLURM_PROCID": "1", "SLURM_ARRAY_TASK_ID": "3"}
    node = identify(task_of("starter"), environ).node
    assert (node.node_index, node.local_addr) == (2, choose_address([]))
    # One that is alone keeps the loopback, which its plan has.
    task = task_of("starter", max_nodes=1)
    task = replace(task, settings=replace(task.settings, meet_dir=""))
    assert identify(task, environ).node == task.node


def test_a_single_node_in_an_element_of_somebody_s_array_is_the_first():
    environ = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_ARRAY_TASK_ID": "3"}
    assert identify(task_of(max_nodes=1), environ).node.node_index == 0


def test_a_node_that_was_not_started_by_srun_says_so():
    with pytest.raises(InputError, match="SLURM_ARRAY_TASK_ID and SLURM_PROCID are not set"):
        identify(task_of(), {})


def test_each_start_of_a_node_is_its_next_incarnation(tmp_path):
    task = identify(task_of(log_dir=str(tmp_path / "nodes/0/0")), {"SLURM_PROCID": "1"})
    taken = [claim_incarnation(task).node for _ in range(2)]
    assert [node.incarnation for node in taken] == [0, 1]
    assert [node.log_dir for node in taken] == [str(tmp_path / f"nodes/1/{n}") for n in range(2)]


@pytest.mark.parametrize("peers", [(), (LOOPBACK,), ("not-an-address",), ("::1",)])
def test_a_node_takes_the_loopback_only_where_it_has_no_other_address(peers):
    known = (*own_addresses(), LOOPBACK)
    assert choose_address(peers) in known
    assert (choose_address(peers) == LOOPBACK) is (known == (LOOPBACK,))


def test_a_node_takes_the_address_that_lies_on_the_way_to_its_cluster():
    for own in own_addresses():
        assert choose_address([own]) == own
        found = identify(task_of(), {"SLURM_PROCID": "0", "SLURM_LAUNCH_NODE_IPADDR": own})
        assert found.node.local_addr == own


def test_another_identity_looks_for_no_address():
    task = task_of("launcher")
    task = replace(task, node=replace(task.node, local_addr="n1"))
    assert identify(task, {protocol.NODE_INDEX: "1"}, "n1").node.local_addr == "n1"
