"""What real clusters do to a job, played in real containers, in the words of ``launcher run``."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from launcher.contract.errors import ExitCode
from tests.launcher.played import LIMIT_S, WAIT, container, elastic, nothing_is_left
from tests.launcher.relay import Relay, open_relay

pytestmark = pytest.mark.docker


@pytest.fixture
def relay() -> Iterator[Relay]:
    with open_relay() as made:
        yield made


# -- an engine that goes away ---------------------------------------------------------------------


def test_ctrl_c_with_the_engine_away_says_what_runs_on_and_the_command_that_ends_it(
    play, engine, relay
):
    played = play(elastic(WAIT), DOCKER_HOST=relay.address)
    played.until(lambda text: text.count("] up") == 2)
    relay.go()
    played.process.send_signal(signal.SIGINT)
    assert played.end() == ExitCode.TARGET_UNREACHABLE, played.text
    assert "nothing was left running" not in played.text
    assert "Traceback" not in played.text
    what, fix = played.text.splitlines()[-2:]
    assert what.startswith("error: STILL RUNNING: foreign-")
    assert container(engine, "worker-0").status == "running"
    subprocess.run(fix.partition("fix: ")[2], shell=True, check=True, timeout=LIMIT_S)
    assert nothing_is_left(engine, played)
