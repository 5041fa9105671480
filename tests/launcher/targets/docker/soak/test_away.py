"""A Docker engine that is away while a run goes on, as when it is started anew."""

import signal
from collections.abc import Iterator

import pytest

from tests.launcher.docker_runs import MOUNTED, UNTIL_TOLD, containers, has
from tests.launcher.relay import Relay, open_relay
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


@pytest.fixture
def relay(launcher: Runner) -> Iterator[Relay]:
    with open_relay() as made:
        launcher.env["DOCKER_HOST"] = made.address
        yield made


def test_a_run_goes_on_once_its_engine_is_back_and_what_is_left_of_it_is_named_with_the_command(
    launcher, engine, relay
):
    launcher.write(UNTIL_TOLD, MOUNTED)
    process = launcher.start("run", "job.yaml", "--on", "docker")
    wait_until(lambda: has(launcher, "up-0"))
    assert process.stderr is not None
    relay.go()
    assert any(b"waiting for it" in line for line in process.stderr)
    relay.come()
    # The next command asks the engine through the same socket: the follower does as well by then.
    assert launcher("status", "--json").returncode == 0
    relay.go()
    assert any(b"waiting for it" in line for line in process.stderr), "it was back in between"
    process.send_signal(signal.SIGINT)
    said = process.stderr.read().decode()
    assert process.wait(60) == 130
    (run_id,) = launcher.run_ids()
    assert f"launcher stop {run_id}" in said
    assert len(containers(engine, run_id)) == 1
    relay.come()
    assert launcher("stop", run_id).returncode == 0
    assert containers(engine, run_id) == []
