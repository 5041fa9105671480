import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract.errors import ExitCode, TargetError
from launcher.job.spec import JobSpec
from launcher.targets.docker.target import DockerTarget

JOB = JobSpec.model_validate({"name": "t", "command": "t.py"})


@pytest.fixture
def silent_socket(tmp_path: Path) -> Iterator[str]:
    """The socket of an engine that accepts and never answers."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        yield f"unix://{tmp_path / 's'}"


@pytest.mark.parametrize(
    ("host", "told", "fix"),
    [
        ("ssh://nobody@127.0.0.1:1", "ssh://nobody@127.0.0.1:1", "unset DOCKER_HOST"),
        ("unix:///nonexistent", "at unix:///nonexistent: No such file or directory", "--on local"),
        ("tcp://127.0.0.1:1", "Connection refused", "start Docker"),
        ("SILENT", "is there, but does not answer", "docker info"),
        ("nonsense://x", "nonsense", ""),
    ],
)
def test_an_engine_that_cannot_be_used_is_an_error_within_seconds_with_the_fix(
    monkeypatch, tmp_path, silent_socket, host, told, fix
):
    monkeypatch.setenv("DOCKER_HOST", host.replace("SILENT", silent_socket))
    began = time.monotonic()
    with pytest.raises(TargetError) as caught:
        DockerTarget(tmp_path).facts(JOB)
    assert time.monotonic() - began < 10
    assert caught.value.exit_code is ExitCode.TARGET_UNREACHABLE
    assert told in caught.value.what
    assert fix in caught.value.hint
