"""Helpers of a node that a signal has stopped, and an agent that nothing ends: real processes."""

import signal
import time

import psutil

from launcher.agent.node import supervisor
from tests.launcher.agent.place import LIMIT_S
from tests.launcher.agent.test_frozen import freeze

WAITS = """
import os, pathlib, time
pathlib.Path("up-" + os.environ["TORCHELASTIC_RESTART_COUNT"]).write_text(str(os.getpid()))
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def test_a_node_that_stood_still_for_longer_than_its_waits_goes_on(place):
    place.write(WAITS)
    place.plan()
    process = place.start()
    place.pid_in("up-0")
    frozen = place.processes()
    for one in frozen:
        freeze(one)
    time.sleep(supervisor.SLOW_LOOK_S + 0.5)
    for one in frozen:
        one.send_signal(signal.SIGCONT)
    (place.folder / "go").touch()
    assert process.wait(LIMIT_S) == 0, place.console()


def test_a_node_whose_agent_is_stopped_ends_within_its_grace(place):
    place.write(WAITS)
    place.plan(stop_grace_s=1)
    process = place.start()
    place.pid_in("up-0")
    (agent,) = psutil.Process(process.pid).children()
    freeze(agent)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert place.processes() == []
