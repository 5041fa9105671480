import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.contract.states import NodeState
from launcher.targets.at_once import HEARS_S, at_once
from launcher.targets.docker.engine import STATES
from launcher.targets.docker.target import has_nvidia
from tests.programs import run_program

AS_NOBODY = """
import os, sys
from pathlib import Path
import docker  # before this user may no longer read it
from launcher.job.spec import JobSpec
from launcher.contract.errors import TargetError
from launcher.targets.docker.target import DockerTarget
target, job = DockerTarget(Path("/")), JobSpec.model_validate({"name": "t", "command": "t.py"})
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    target.facts(job)
except TargetError as error:
    print(error)
"""


def test_a_socket_that_the_caller_may_not_use_has_a_hint_of_its_own(tmp_path):
    # In a folder that another user may enter, unlike tmp_path.
    path = Path(f"/tmp/closed-{tmp_path.name}-{time.monotonic_ns()}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0)
        try:
            done = run_program(
                [sys.executable, "-c", AS_NOBODY],
                env={"DOCKER_HOST": f"unix://{path}", "PATH": "/usr/bin:/bin", "HOME": "/"},
                timeout=60,
            )
        finally:
            path.unlink()
    assert "Permission denied" in done.stdout, done.stderr
    assert "usermod -aG docker" in done.stdout


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, False),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": None}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/nic=0"}]}, False),
    ],
)
def test_an_engine_gives_gpus_by_nvidias_runtime_or_by_cdi(info, expected):
    assert has_nvidia(info) is expected


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
