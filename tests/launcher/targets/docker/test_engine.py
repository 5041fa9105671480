import socket
import subprocess
import sys
import threading

import docker.errors
import pytest

from launcher.contract.causes import NodeState
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, TargetError
from launcher.targets.at_once import HEARS_S, at_once
from launcher.targets.docker.engine import STATES, Engine, engine_errors


@pytest.mark.parametrize(
    ("host", "told", "fix"),
    [
        ("ssh://nobody@127.0.0.1:1", "answers at ssh://nobody@127.0.0.1:1", "unset DOCKER_HOST"),
        ("unix:///none", "no Docker engine answers at unix:///none: No such file", "start Docker"),
        ("tcp://127.0.0.1:1", "answers at tcp://127.0.0.1:1: Connection refused", "start Docker"),
        ("unix://SILENT", "/s is there, but does not answer (it was to describe", "docker info"),
        ("nonsense://x", "answers at nonsense://x: Invalid bind address", "start Docker"),
    ],
)
def test_an_engine_that_cannot_be_used_is_an_error_with_the_fix(
    monkeypatch, tmp_path, host, told, fix
):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", host.replace("SILENT", str(tmp_path / "s")))
        with pytest.raises(TargetError) as caught:
            Engine(SystemClock()).read_info()
    assert caught.value.exit_code is ExitCode.TARGET_UNREACHABLE
    assert told in caught.value.what
    assert caught.value.hint.startswith(fix)


def test_a_socket_that_the_caller_may_not_use_has_a_hint_of_its_own(monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    denied = docker.errors.DockerException("Error while fetching server API version")
    denied.__cause__ = PermissionError(13, "Permission denied")
    with (
        pytest.raises(TargetError, match="at its usual socket: Permission denied") as caught,
        engine_errors("list containers"),
    ):
        raise denied
    assert caught.value.hint.startswith("sudo usermod -aG docker")


def test_the_sdk_is_imported_at_first_use():
    look = "import sys, launcher.targets.docker.target; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=60).returncode == 0


def test_every_state_of_the_engine_has_one_of_ours():
    # As in the engine's API: "created", "running", "paused", "restarting", ...
    known = {"created", "running", "paused", "restarting", "removing", "exited", "dead"}
    assert set(STATES) == known
    assert set(STATES.values()) == set(NodeState)


def test_of_actions_at_once_all_end_before_the_first_error_is_raised():
    done, may_end = list[int](), threading.Event()

    def act(number: int) -> int:
        if number == 0:
            raise ValueError(number)
        may_end.wait(5)
        done.append(number)
        return number

    # After several turns of waiting: the first turn alone would end too early.
    threading.Timer(4 * HEARS_S, may_end.set).start()
    with pytest.raises(ValueError, match="0"):
        at_once(act, range(8))
    assert sorted(done) == [1, 2, 3, 4, 5, 6, 7]
    assert at_once(act, ()) == []
    assert at_once(act, (1, 2, 3)) == [1, 2, 3]
