"""A bench of the target that a test is given."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.targets.contract.benches import BENCHES
from tests.launcher.targets.contract.contract import Bench


@pytest.fixture(scope="session")
def engine_of(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A target's name, and the fixture of what its tests share; the first of all fixtures."""
    shared = BENCHES[request.param].shared
    return request.param, request.getfixturevalue(shared) if shared else None


@pytest.fixture
def bench(engine_of: tuple[str, Any], tmp_path: Path) -> Iterator[Bench]:
    """The target for this test."""
    name, shared = engine_of
    with contextlib.contextmanager(BENCHES[name].make)(tmp_path, shared) as bench:
        yield bench
        bench.end()
