"""Scenarios in which all goes well: how workers start, who they are, where their output goes."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing import Std

from tests.conformance import workers
from tests.conformance.nodes import Group, Node


def a_function(group: Group) -> str:
    group.start(workers.echo, "value", nproc=2)
    ending = group.endings()
    assert group.values() == {0: "value 0", 1: "value 1"}
    return ending


def a_command(group: Group) -> str:
    node = group.start("/bin/sh", group.script(), nproc=2)
    ending = group.endings()
    assert [start["LOCAL_RANK"] for start in node.starts()] in (["0", "1"], ["1", "0"])
    return ending


def a_command_that_fails(group: Group) -> str:
    group.start("/bin/sh", group.script(), "7")
    return group.endings()


def output_teed(group: Group) -> str:
    node = group.start(
        *("/bin/sh", group.script()), nproc=2, tee=Std.ALL, prefix="[${role_name} ${rank}]:"
    )
    ending = group.endings()
    assert output_of(node) == {("out of 0", "err of 0"), ("out of 1", "err of 1")}
    for rank in (0, 1):
        assert f"[trainer {rank}]:out of {rank}" in node.log()
        assert f"[trainer {rank}]:err of {rank}" in node.log()
    return ending


def output_of(node: Node) -> set[tuple[str, str]]:
    """What lies in torch's log folder: stdout and stderr of each worker."""
    found = set()
    for out in node.folder.glob("logs/*/attempt_0/*/stdout.log"):
        found.add((out.read_text().strip(), out.with_name("stderr.log").read_text().strip()))
    return found


def the_environment(group: Group) -> str:
    nodes = group.start_all(2, workers.echo, "value", nproc=2, max_restarts=3)
    ending = group.endings()
    starts = [start for node in nodes for start in node.starts()]
    assert {start["MASTER_ADDR"] for start in starts} == {"127.0.0.1"}
    assert len({start["MASTER_PORT"] for start in starts}) == 1
    for start in starts:
        assert start["LOCAL_RANK"] in ("0", "1")
        assert int(start["RANK"]) == 2 * int(start["GROUP_RANK"]) + int(start["LOCAL_RANK"])
        assert start["ROLE_RANK"] == start["RANK"]
        assert (start["WORLD_SIZE"], start["ROLE_WORLD_SIZE"]) == ("4", "4")
        assert (start["LOCAL_WORLD_SIZE"], start["GROUP_WORLD_SIZE"]) == ("2", "2")
        assert (start["ROLE_NAME"], start["TORCHELASTIC_RUN_ID"]) == ("trainer", group.run_id)
        assert start["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert start["TORCHELASTIC_MAX_RESTARTS"] == "3"
        assert start["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert start["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    return ending


def a_master_address_that_is_given(group: Group) -> str:
    node = group.start(workers.echo, "value", master=("somewhere", 42))
    ending = group.endings()
    (start,) = node.starts()
    assert (start["MASTER_ADDR"], start["MASTER_PORT"]) == ("somewhere", "42")
    return ending


def ranks_of_25_workers(group: Group) -> str:
    """Ranks are without a gap in the run and on each node; all nodes have one role."""
    sizes = (8, 1, 2, 3, 4, 5, 2)
    for nproc in sizes:
        group.start(workers.echo, "value", nproc=nproc, least=len(sizes), most=len(sizes))
    ending = group.endings()
    everybody: list[int] = []
    for node, nproc in zip(group.nodes, sizes, strict=True):
        starts = node.starts()
        assert {start["WORLD_SIZE"] for start in starts} == {str(sum(sizes))}
        assert {start["ROLE_WORLD_SIZE"] for start in starts} == {str(sum(sizes))}
        assert {start["GROUP_WORLD_SIZE"] for start in starts} == {str(len(sizes))}
        assert len({start["GROUP_RANK"] for start in starts}) == 1
        assert all(start["ROLE_RANK"] == start["RANK"] for start in starts)
        ranks = sorted(int(start["RANK"]) for start in starts)
        assert ranks == list(range(ranks[0], ranks[0] + nproc))
        everybody += ranks
    assert sorted(everybody) == list(range(sum(sizes)))
    return ending


def a_sum_of_unequal_nodes(group: Group) -> str:
    for nproc in (1, 2, 3):
        group.start(workers.add_ranks, nproc=nproc, least=3, most=3)
    ending = group.endings()
    assert group.values() == dict.fromkeys(range(6), 15)
    return ending


def a_remote_call(group: Group) -> str:
    group.start_all(2, workers.call_the_other, "hello")
    ending = group.endings()
    assert group.values() == {0: "hello of rank 1", 1: ""}
    return ending


def fewer_than_the_least(group: Group) -> str:
    nodes = group.start_all(2, workers.echo, "value", least=3, most=3, join_timeout_s=5)
    ending = group.endings()
    ways = {node.ending() for node in nodes}
    if group.backend == "roster":  # whose store stays until all have given up by themselves
        assert ways == {"RendezvousTimeoutError"}, group.logs()
    return "all give up" if all(way.startswith("Rendezvous") for way in ways) else ending
