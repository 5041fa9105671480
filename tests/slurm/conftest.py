"""A person who types on a login node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.typist import Typist


@pytest.fixture
def typist(tmp_path: Path, cluster: Cluster) -> Iterator[Typist]:
    """``launcher`` typed on a login node of the cluster."""
    typist = Typist(tmp_path, cluster)
    yield typist
    typist.end()
