"""One cluster for all tests of a session, and the check that each of them leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.typist import Typist


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """Three idle nodes; a test fails if it leaves a job in the queue or a process on a node."""
    yield one_cluster
    # One that failed must not make all others fail.
    left = one_cluster.mend()
    assert not left, f"left in the queue or on nodes: {left}"


@pytest.fixture
def typist(tmp_path: Path, cluster: Cluster) -> Iterator[Typist]:
    """``launcher`` typed on a login node of the cluster."""
    typist = Typist(tmp_path, cluster)
    yield typist
    typist.end()
