"""The benchmark on Slurm: its rows, and real samples of both sides on a real slurmctld."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from benchmarks.recovery import TUNED
from benchmarks.slurm import (
    lose_by_hand,
    lose_launcher,
    start_by_hand,
    start_launcher,
    started_cluster,
    submit_many,
)
from tests.slurm.cluster import Cluster

Sample = Callable[[Cluster], float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started_cluster() as cluster:
        yield cluster


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
