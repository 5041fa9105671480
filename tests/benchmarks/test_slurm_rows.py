"""The benchmark on Slurm: its rows, and real samples of both sides on a real slurmctld."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from benchmarks import slurm
from benchmarks.recovery import TUNED
from benchmarks.slurm import (
    lose_by_hand,
    lose_launcher,
    runs_on_slurm,
    start_by_hand,
    start_launcher,
    started_cluster,
    submit_many,
)
from benchmarks.trials import measure
from tests.slurm.cluster import Cluster

Sample = Callable[[Cluster], float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started_cluster() as cluster:
        yield cluster


def test_every_row_has_its_goal_or_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process: each sample takes a second for the launcher and ten by hand."""

    @contextmanager
    def no_cluster() -> Iterator[None]:
        yield

    for name in ("start_launcher", "lose_launcher", "submit_many"):
        monkeypatch.setattr(slurm, name, lambda *_: 1.0)
    for name in ("start_by_hand", "lose_by_hand"):
        monkeypatch.setattr(slurm, name, lambda *_: 10.0)
    monkeypatch.setattr(slurm, "started_cluster", no_cluster)
    rows = [row for trial in runs_on_slurm() for row in measure("slurm", trial, 2, 0)]
    assert len({row.what for row in rows}) == len(rows) == 6
    assert all(row.theirs or row.goal for row in rows)
    assert [row.ok for row in rows if row.goal] == [True, True]


@pytest.mark.slurm
def test_a_thousand_nodes_are_submitted_to_slurm_itself(cluster: Cluster) -> None:
    assert 0 < submit_many(cluster) < 60
    assert cluster.queue() == []


@pytest.mark.slurm
@pytest.mark.slow  # make bench is its user, and takes longer
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "sample",
    [
        start_launcher,
        start_by_hand,
        partial(lose_launcher, kind="allocation"),
        partial(lose_launcher, kind="array"),
        partial(lose_by_hand, conf=TUNED),
    ],
    ids=["start", "start by hand", "loss, allocation", "loss, array", "loss by hand"],
)
def test_one_sample_of_each_side_is_taken_and_leaves_nothing(
    cluster: Cluster, sample: Sample
) -> None:
    assert sample(cluster) > 0
    assert cluster.mend() == []
