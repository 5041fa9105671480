"""Settings are held against torch's own parser, reports against torch's own printer."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.contract.errors import InputError, KeyInputError
from launcher.contract.node_plan import Env, NodePlan
from launcher.plan.torchrun import (
    WorkerLog,
    as_flags,
    parse_failures,
    parse_torch_version,
    parse_worker_folder,
    plan_options,
    split_console,
)

SHAPES: list[dict[str, Any]] = [
    {"nnodes": 1, "nproc_per_node": 2},
    {"nnodes": 2, "nproc_per_node": 1},
    {"nnodes": "1:3", "nproc_per_node": 1, "max_restarts": 3},
    {"nnodes": "2:4", "nproc_per_node": 8, "rdzv": {"conf": {"join_timeout": 77}}},
    {"nnodes": 2, "nproc_per_node": 1, "engine": "torchrun", "rdzv": {"backend": "c10d"}},
]


def options_of(node: NodePlan, torch: tuple[int, int] = (2, 13)) -> Env:
    return plan_options(node, torch, stop_grace_s=30)


def launch_config(argv: list[str]) -> Any:
    """What the installed torch makes of a command line."""
    from torch.distributed.run import config_from_args, parse_args

    return config_from_args(parse_args(argv))


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_reads_the_settings_as_they_were_planned(make_plan, docker_facts, shape):
    plan = make_plan(docker_facts, **shape)
    for node in plan.nodes:
        config, _, arguments = launch_config([*as_flags(options_of(node)), "train.py", "--lr", "1"])
        assert (config.min_nodes, config.max_nodes) == (node.min_nodes, node.max_nodes)
        assert config.nproc_per_node == node.nproc_per_node
        assert arguments[-3:] == ["train.py", "--lr", "1"]
        assert config.local_addr == node.local_addr


def test_a_rendezvous_is_told_whole(make_plan):
    common = {"nproc_per_node": 1, "engine": "torchrun"}
    etcd = {"backend": "etcd-v2", "endpoint": "e:2379"}
    first, second = make_plan(nnodes="1:2", max_restarts=3, **common).nodes
    conf = "read_timeout=300,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=3"
    told = {"nnodes": "1:2", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:23456",
            "rdzv_id": "digits-0a1b2c", "max_restarts": "3", "local_addr": "127.0.0.1"}  # fmt: skip
    assert told.items() <= dict(options_of(first)).items()
    assert dict(options_of(first))["rdzv_conf"] == f"{conf},is_host=1"
    assert dict(options_of(second))["rdzv_conf"] == f"{conf},is_host=0"
    by_etcd = dict(options_of(make_plan(nnodes="1:2", rdzv=etcd, **common).nodes[0]))
    assert (by_etcd["rdzv_endpoint"], by_etcd.get("rdzv_conf")) == ("e:2379", None)
    rdzv = {**etcd, "conf": {"protocol": "https", "join_timeout": 5}}
    by_etcd = dict(options_of(make_plan(nnodes="1:2", rdzv=rdzv, **common).nodes[0]))
    assert by_etcd["rdzv_conf"] == "join_timeout=5,protocol=https"
    static = dict(options_of(make_plan(nnodes=2, **common).nodes[1]))
    assert {
        "nnodes": "2",
        "master_port": "23456",
        "local_addr": "127.0.0.1",
    }.items() <= static.items()


def test_a_static_agent_never_restarts_its_workers_itself(make_plan):
    plan = make_plan(nnodes=2, nproc_per_node=1, max_restarts=3, engine="torchrun")
    assert dict(options_of(plan.nodes[1]))["max_restarts"] == "0"
    assert dict(options_of(plan.nodes[1]))["node_rank"] == "1"


def test_standalone_is_never_set(make_plan):
    options = dict(options_of(make_plan().nodes[0]))
    assert "standalone" not in options
    assert "PET_STANDALONE" in protocol.STALE_VARIABLES


@pytest.mark.parametrize(("torch", "known"), [((2, 11), False), ((2, 12), True), ((3, 0), True)])
def test_a_flag_is_used_only_where_torch_knows_it(make_plan, torch, known):
    options = dict(options_of(make_plan().nodes[0], torch))
    assert ("shutdown_timeout" in options) == known


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13)), ("2.4", (2, 4)), (None, (2, 4)), ("nightly", (2, 4))],
)
def test_versions_are_read_and_the_oldest_supported_one_is_assumed(text, version):
    assert parse_torch_version(text) == version


def test_a_torch_that_is_too_old_is_named_where_it_is(make_plan, local_facts):
    with pytest.raises(InputError, match=r"have torch 2\.3\.1.*oldest that is supported is 2\.4"):
        make_plan(replace(local_facts, torch_version="2.3.1+cu121"))
    for known in (None, "2.3"):  # on a cluster, what the job says is all that is known
        with pytest.raises(KeyInputError, match=r"torch_version: 2\.3 is older than 2\.4"):
            make_plan(replace(local_facts, torch_version=known), torch_version="2.3")
    assert make_plan(local_facts, torch_version="2.3").torch_version == local_facts.torch_version


def test_torchruns_own_report_is_read_back_with_the_root_cause_first():
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    def failure(local_rank: int, exit_code: int, pid: int, at: int) -> ProcessFailure:
        made = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file="-")
        made.timestamp = at
        return made

    error = ChildFailedError("train.py", {4: failure(0, -15, 71, 2000), 5: failure(1, 1, 72, 1000)})
    assert parse_failures(f"earlier lines\n{error}\nlater lines\n") == ((5, 1, 1), (4, 0, -15))


@pytest.mark.parametrize("console", ["", "usage: torchrun\n", "something FAILED\nno report"])
def test_a_console_without_a_report_names_nobody(console):
    assert parse_failures(console) == ()


def test_lines_on_a_console_are_told_apart_by_who_wrote_them():
    prefix = protocol.LINE_PREFIX.format(node_index=3).replace("${rank}", "12")
    other = protocol.LINE_PREFIX.format(node_index=3).replace("${rank}", "1")
    console = (
        f"{prefix}step 4\n{prefix}\n{other}[3/12] step 4\n"
        "W0101 torchrun: [3/12] not at the beginning\n[2/12] of another node\n\n"
        f"{prefix}step 5\n"
    )
    assert list(split_console(console.encode(), 3)) == [
        (12, b"step 4\n\n"),
        (1, b"[3/12] step 4\n"),
        (None, b"W0101 torchrun: [3/12] not at the beginning\n[2/12] of another node\n\n"),
        (12, b"step 5\n"),
    ]


@pytest.mark.parametrize(
    ("path", "log"),
    [
        ("nodes/1/2/digits-0a_x7/attempt_3/4", {"local_rank": 4}),
        ("nodes/1/2/attempt-3/rank-70", {"rank": 70}),
        ("nodes/1/2/console.log", None),
        ("nodes/1/2/attempt-3", None),
        ("nodes/1/2/x/attempt_3", None),
        ("attempt-3/rank-7", None),
    ],
)
def test_whose_a_log_folder_is_is_told_by_its_path(path, log):
    whose = {"node_index": 1, "incarnation": 2, "attempt": 3, "folder": path}
    assert parse_worker_folder(path) == (log and WorkerLog(**whose, **log))


def test_a_local_rank_becomes_global_by_its_nodes_place():
    for log, place, rank in (({"rank": 70}, 0, 70), ({"local_rank": 1}, 1, 4)):
        made = WorkerLog(node_index=1, incarnation=0, attempt=0, folder="", **log)
        assert made.rank_on(place, 3) == rank
