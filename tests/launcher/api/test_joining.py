"""A node that a person adds to a run that goes on."""

from __future__ import annotations

import pytest

from launcher.api.resizing import plan_joining_node
from launcher.contract.errors import InputError


def test_a_joining_node_has_an_index_name_and_folder_of_its_own_and_serves_no_store(
    make_plan, docker_facts
):
    plan = make_plan(docker_facts, nnodes="1:2")
    node, last = plan_joining_node(plan, 7), plan.nodes[-1]
    assert (node.node_index, node.incarnation) == (7, 0)
    assert node.name == node.local_addr == "digits-0a1b2c-7"
    assert node.log_dir == "/launcher/run/nodes/7/0"
    assert dict(node.env)["LAUNCHER_NODE_INDEX"] == "7"
    assert not node.rendezvous.is_host  # type: ignore[union-attr]
    assert (node.command, node.mounts) == (last.command, last.mounts)


def test_a_gpu_that_was_given_out_is_not_given_to_a_joining_node(make_plan, cuda_facts):
    with pytest.raises(InputError, match="gave each GPU"):
        plan_joining_node(make_plan(cuda_facts, nnodes="1:2"), 2)
