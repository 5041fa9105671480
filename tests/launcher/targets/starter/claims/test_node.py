"""``launcher node``, started by hand and by a real mpirun, as real processes."""

import os

import pytest

from launcher.agent.addresses import choose_address, interface_of
from tests.launcher.targets.starter.test_node import finish, starting


@pytest.mark.mpi
def test_nodes_that_mpirun_starts_form_a_group_and_end_with_one_code(starting):
    process = starting.mpirun(2, "node", "job.yaml")
    code, out, err = finish(process)
    assert code == 0, err
    assert {"[0/0] sum 2 of node 0", "[1/1] sum 2 of node 1"} <= set(out.splitlines())
    # Else gloo takes the interface of the host's name, which may be the loopback.
    interface = interface_of(choose_address([]))
    assert out.count(f"left [] by {interface or None}\n") == 2
    if len(os.sched_getaffinity(0)) > 1:
        assert "mpirun bound this node to 1 of its cores; the workers get all" in err
    (run_id,) = starting.launcher.run_ids()
    assert f"{run_id}: SUCCEEDED on starter" in starting.launcher("status").stdout
    listed = starting.launcher("ps", "--all").stdout
    assert "starter" in listed
