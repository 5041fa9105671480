"""Whole runs in real containers: two nodes, elastic groups, lost nodes, interrupted launchers."""

import os
import signal
import subprocess

import pytest

from tests.launcher.docker_runs import MOUNTED, containers, has
from tests.launcher.runner import WAITING
from tests.launcher.targets.docker.claims.test_run import ELASTIC, lose_node
from tests.waiting import wait_until

pytestmark = pytest.mark.docker
TORCH_ONLY = "fabric-train-tests:torch-only"
DOCKERFILE = r"""
FROM fabric-train:cpu
USER root
LABEL launcher.agent-version=
RUN rm -rf /workspace/* /launcher && python -m pip uninstall --yes --quiet \
    lightning pytorch-lightning lightning-utilities torchmetrics jsonargparse scikit-learn scipy
"""


def build_torch_only() -> None:
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", TORCH_ONLY, "-"],
        input=DOCKERFILE.encode(),
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
        check=True,
        capture_output=True,
    )


def test_a_second_ctrl_c_does_not_wait_for_the_grace_and_nothing_is_left(launcher, engine):
    launcher.write(WAITING.replace("SIG_DFL", "SIG_IGN"), MOUNTED)
    argv = ("--on", "docker", "--nnodes", "2", "--set", "stop_grace_s=120")
    process = launcher.start("run", "job.yaml", *argv)
    wait_until(lambda: has(launcher, "up-1"))
    process.send_signal(signal.SIGINT)
    wait_until(lambda: has(launcher, "nodes/0/0/stop-request"))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    (run_id,) = launcher.run_ids()
    assert containers(engine, run_id) == []
    assert engine.networks.list(names=[run_id]) == []


def test_a_worker_that_was_killed_for_memory_earlier_is_not_why_a_run_fails(launcher):
    launcher.write(
        "import os\n"
        "mark = os.environ['RUN_DIR'] + '/been-here'\n"
        "if os.path.exists(mark):\n"
        "    raise ValueError('no such column')\n"
        "open(mark, 'w').close()\n"
        "held = bytearray(os.urandom(1 << 20)) * 4096\n",
        MOUNTED + "max_restarts: 1\nresources: {memory: 1Gi}\n",
    )
    told = launcher.fails(1, "run", "job.yaml", "--on", "docker")
    assert launcher.outcome["restarts"] == {"worker-fault": 1}
    assert launcher.outcome["cause"] == "restarts-exhausted", told
    assert "no such column" in launcher.outcome["failure"]["first"]["exception"]


def test_a_lost_container_of_a_plain_job_is_replaced_in_an_image_that_has_only_torch(
    launcher, engine
):
    build_torch_only()
    nothing_else = "not any(map(find_spec, ('launcher', 'lightning', 'sklearn')))"
    only = f"from importlib.util import find_spec\nassert {nothing_else}\n"
    launcher.write(only + ELASTIC, MOUNTED + "start: fork\n")
    job = ("run", "job.yaml", "--on", "docker", "--image", TORCH_ONLY, "--nnodes", "2")
    assert b"replacing it, the others wait for it" in lose_node(launcher, engine, 1, *job)
