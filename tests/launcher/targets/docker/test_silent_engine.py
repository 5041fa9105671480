"""A Docker engine that takes requests and answers none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from launcher.contract.errors import SilentTargetError
from launcher.targets.docker.engine import engine_errors


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "engine"))
        server.listen()
        yield f"unix://{tmp_path}/engine"


@pytest.mark.parametrize("version", ["auto", "1.41"])
def test_it_is_told_from_one_that_is_not_there(silent: str, version: str) -> None:
    # Asked for its version, the SDK wraps the time-out in an error of its own.
    raised = pytest.raises(SilentTargetError, match="is there, but does not answer")
    with raised, engine_errors("describe itself"):
        docker.DockerClient(base_url=silent, version=version, timeout=1).info()
