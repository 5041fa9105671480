"""A Docker engine that is away while a run goes on, as when it is started anew."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.launcher.docker_runs import MOUNTED, UNTIL_TOLD, containers, has
from tests.launcher.relay import Relay, open_relay
from tests.launcher.runner import Runner, wait_until

pytestmark = pytest.mark.docker


@pytest.fixture
def relay(launcher: Runner) -> Iterator[Relay]:
    with open_relay() as made:
        launcher.env["DOCKER_HOST"] = made.address
        yield made


@pytest.fixture
def waiting(launcher: Runner, relay: Relay) -> subprocess.Popen[bytes]:
    """A run whose engine has gone away."""
    launcher.write(UNTIL_TOLD, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker")
    wait_until(lambda: has(launcher, "up-0"), limit_s=90)
    relay.go()
    assert process.stderr is not None
    assert any(b"waiting for it" in line for line in process.stderr)
    return process


def test_a_run_goes_on_with_its_launcher_once_the_engine_is_back(
    launcher: Runner, engine: Any, relay: Relay, waiting: subprocess.Popen[bytes]
) -> None:
    relay.come()
    (launcher.folder / "runs/latest/go").touch()
    assert waiting.wait(60) == 0
    assert launcher.outcome["reason"] == "completed"
    assert containers(engine, launcher.run_ids()[0]) == []


def test_what_an_engine_that_is_away_cannot_be_told_to_end_is_named_with_the_command(
    launcher: Runner, engine: Any, relay: Relay, waiting: subprocess.Popen[bytes]
) -> None:
    (run_id,) = launcher.run_ids()
    waiting.send_signal(signal.SIGINT)
    assert waiting.stderr is not None
    said = waiting.stderr.read().decode()
    assert waiting.wait(60) == 130
    assert f"launcher stop {run_id}" in said
    assert len(containers(engine, run_id)) == 1
    relay.come()
    assert launcher("stop", run_id).returncode == 0
    assert containers(engine, run_id) == []
