"""Whose a worker's log folder is, by its path."""

from __future__ import annotations

import pytest

from launcher.plan.torchrun import WorkerLog, parse_worker_folder


@pytest.mark.parametrize(
    "path",
    ["nodes/1/2/console.log", "nodes/1/2/attempt-3", "nodes/1/2/x/attempt_3", "attempt-3/rank-7"],
)
def test_only_a_ranks_folder_is_one(path):
    assert parse_worker_folder(path) is None


def test_a_ranks_folder_tells_the_global_rank():
    path = "nodes/1/2/attempt-3/rank-70"
    log = parse_worker_folder(path)
    assert log == WorkerLog(node_index=1, incarnation=2, attempt=3, rank=70, folder=path)
    assert log.rank_on(0, 8) == 70


def test_a_local_rank_becomes_global_by_its_nodes_place():
    log = WorkerLog(node_index=1, incarnation=0, attempt=0, local_rank=1, folder="")
    assert log.rank_on(1, 3) == 4
