"""The rules under "Rendezvous" in the design: each was measured, each has a test here."""

from dataclasses import replace

import pytest

from launcher.contract.errors import InputError
from launcher.contract.node_plan import Elastic, Static
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import plan_next_attempt
from launcher.plan.rendezvous import (
    format_endpoint,
    needs_majority,
    plan_backend,
    plan_rendezvous,
)
from tests.launcher.node_plans import node_plan


def rendezvous(job: JobSpec, node_index: int = 0, host: str = "w-0", **fields: object):
    fields = {"port": None, "id": "run", "torch_version": (2, 13), **fields}
    return plan_rendezvous(job, node_index=node_index, host=host, **fields)


@pytest.mark.parametrize(
    ("nnodes", "backend"), [(1, "c10d"), (2, "static"), ("1:4", "c10d"), ("2:2", "static")]
)
def test_under_torchrun_fixed_groups_meet_statically_and_elastic_ones_by_c10d(
    make_job, nnodes, backend
):
    assert plan_backend(make_job(nnodes=nnodes, engine="torchrun")) == backend


@pytest.mark.parametrize("fields", [{}, {"nnodes": 2}, {"nnodes": "1:4"}])
def test_under_the_agent_all_groups_meet_by_its_roster(make_job, fields):
    found = rendezvous(make_job(**fields), fence_dir="/checkpoints")
    assert isinstance(found, Elastic)
    assert found.backend == "roster"
    assert dict(found.conf)["fence_dir"] == "/checkpoints"


@pytest.mark.parametrize("shares", [True, False])
def test_only_a_folder_that_all_nodes_share_fences_the_run(make_plan, local_facts, shares):
    plan = make_plan(replace(local_facts, shares_storage=shares), nnodes="1:2")
    found = plan.nodes[0].rendezvous
    assert isinstance(found, Elastic)
    assert dict(found.conf).get("fence_dir") == (plan.checkpoint_dir if shares else None)


def test_the_roster_takes_the_jobs_limit_and_timeouts_under_its_own_names(make_job):
    from launcher.agent.membership.group import parse_rules

    conf = {"read_timeout": 900, "join_timeout": 50, "last_call_timeout": 7}
    job = make_job(nnodes="1:2", agent={"detection_limit_s": 1.5}, rdzv={"conf": conf})
    found = dict(rendezvous(job).conf)
    assert found == {
        "detection_limit_s": "1.5",
        "join_timeout_s": "50",
        "last_call_s": "7",
        "connect_timeout_s": "900",
    }
    assert parse_rules(node_plan({"conf": tuple(found.items())})).join_timeout_s == 50


@pytest.mark.parametrize(
    ("rendezvous", "living", "needed"),
    [
        ({}, 2, True),
        ({}, 3, False),  # the others are too few to train
        ({"conf": (("fence_dir", "/checkpoints"),)}, 2, False),
        ({"backend": "c10d"}, 2, False),
    ],
)
def test_half_of_a_group_that_nothing_fences_off_needs_a_majority(rendezvous, living, needed):
    node = node_plan(rendezvous, min_nodes=2, max_nodes=4)
    assert needs_majority(node, living) is needed


def test_a_static_rendezvous_is_the_address_and_port_of_node_0(make_job):
    expected = Static(master_addr="w-0", master_port=29500, id="run")
    assert rendezvous(make_job(nnodes=2, engine="torchrun"), node_index=1) == expected


def test_only_node_0_hosts_the_store_and_every_node_is_told_so(make_job):
    job = make_job(nnodes="2:3")
    assert [rendezvous(job, index).is_host for index in range(3)] == [True, False, False]


def test_nobody_hosts_an_etcd(make_job):
    rdzv = {"backend": "etcd-v2", "endpoint": "[fd00::2]:2379"}
    job = make_job(nnodes="2:3", engine="torchrun", rdzv=rdzv)
    found = rendezvous(job, port=25000)
    assert isinstance(found, Elastic)
    assert (found.is_host, found.conf) == (False, ())
    assert (found.endpoint_host, found.endpoint_port) == ("fd00::2", 2379)


@pytest.mark.parametrize("nnodes", [2, "1:2"])
def test_several_nodes_are_never_sent_to_localhost(make_job, nnodes):
    with pytest.raises(InputError, match="each would be alone"):
        rendezvous(make_job(nnodes=nnodes), host="localhost")


def test_one_node_meets_itself_on_any_free_port(make_job):
    assert rendezvous(make_job(), port=25000).endpoint_port == 0


def test_the_read_timeout_outlasts_the_pull_of_an_image(make_job):
    conf = dict(rendezvous(make_job(nnodes="1:2", engine="torchrun")).conf)
    assert int(conf["read_timeout"]) >= 300
    conf = dict(rendezvous(make_job(nnodes="1:2")).conf)
    assert int(conf["connect_timeout_s"]) >= 300


def test_timeouts_that_older_torch_does_not_know_are_left_out(make_job):
    job = make_job(nnodes="1:2", engine="torchrun")
    new = {"last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt"}
    assert new <= set(dict(rendezvous(job, torch_version=(2, 7)).conf))
    assert not new & set(dict(rendezvous(job, torch_version=(2, 6)).conf))


def test_the_jobs_own_timeouts_win(make_job):
    conf_of_job = {"read_timeout": 900, "join_timeout": 5}
    job = make_job(nnodes="1:2", engine="torchrun", rdzv={"conf": conf_of_job})
    conf = dict(rendezvous(job).conf)
    assert (conf["read_timeout"], conf["join_timeout"]) == ("900", "5")


def test_the_jobs_own_port_wins(make_job):
    job = make_job(nnodes=2, rdzv={"port": 1234})
    assert rendezvous(job, port=25000).endpoint_port == 1234
    static = make_job(nnodes=2, rdzv={"port": 1234, "backend": "static"})
    assert rendezvous(static, port=25000).master_port == 1234


@pytest.mark.parametrize(
    ("host", "expected"), [("fd00::1", "[fd00::1]:29400"), ("w-0", "w-0:29400")]
)
def test_ipv6_endpoints_are_bracketed_as_torch_reads_them(host, expected):
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    assert format_endpoint(host, 29400) == expected
    assert parse_rendezvous_endpoint(expected, 1) == (host, 29400)


def test_each_attempt_of_an_elastic_run_has_an_id_of_its_own(make_plan):
    first = make_plan(nnodes="1:2")
    second = plan_next_attempt(first)
    third = plan_next_attempt(second)
    assert len({p.nodes[0].rendezvous.id for p in (first, second, third)}) == 3
    assert len({n.rendezvous.id for n in second.nodes}) == 1
