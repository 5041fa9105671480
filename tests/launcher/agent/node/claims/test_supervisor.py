"""The node's first process: signals, orphans, exit codes; real processes throughout."""

import signal
import time
from typing import Any

import psutil
import pytest

from launcher.agent import __main__ as program
from launcher.contract import protocol
from tests.launcher.agent.place import LIMIT_S, Place, is_living, shared_memory_of
from tests.waiting import wait_until

TREE = """
import os, pathlib, signal, subprocess, sys, time
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("grandchild-" + os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(600)
pathlib.Path("worker-" + os.environ["RANK"]).write_text(str(os.getpid()))
time.sleep(600)
"""
STARTS = ["fresh", "fork"]


def agent_of(place: Place) -> psutil.Process:
    """The supervisor's only child is the agent."""
    (agent,) = psutil.Process(place.process.pid).children()
    return agent


def test_a_python_that_is_too_old_is_named_with_the_fix(monkeypatch, capsys):
    monkeypatch.setattr(program, "OLDEST_PYTHON", (99, 1))
    assert program.main(["agent.pyz", "node-plan.json"]) == 2
    told = capsys.readouterr().err
    assert "the node agent needs 99.1 or newer" in told
    assert "  fix: an image or environment with a newer Python, or engine: torchrun" in told


def start_tree(place: Place, **settings: Any) -> list[psutil.Process]:
    place.write(TREE)
    place.plan(nproc=2, **settings)
    place.start()
    for name in ("worker-0", "worker-1", "grandchild-0", "grandchild-1"):
        place.pid_in(name)
    return place.processes()


@pytest.mark.parametrize("start", STARTS)
def test_nothing_is_left_after_the_agent_was_killed(place, start):
    everything = start_tree(place, start=start)
    segments = shared_memory_of(everything)
    assert len(everything) >= 8
    assert len(segments) >= 2, "one of each worker"
    agent_of(place).kill()
    wait_until(lambda: not any(map(is_living, everything)))
    wait_until(lambda: not any(path.exists() for path in segments))
    assert place.process.wait(LIMIT_S) == 137
    assert place.outcome()["cause"] == "killed"


@pytest.mark.parametrize("start", STARTS)
def test_nothing_is_left_after_the_supervisor_was_killed(place, start):
    everything = start_tree(place, start=start)
    segments = shared_memory_of(everything)
    place.process.kill()
    place.process.wait(LIMIT_S)
    wait_until(lambda: not any(map(is_living, everything)))
    wait_until(lambda: not any(path.exists() for path in segments))


SPEAKER = """
import json, os, pathlib, signal, time
def too_early(*_):
    print("SIGTERM after", "answer" if folder.joinpath("stop-ack").exists() else "nothing")
    os._exit(0)
folder = pathlib.Path(os.environ["LAUNCHER_NODE_DIR"])
signal.signal(signal.SIGTERM, too_early)
folder.joinpath("stop-ready").touch()
print("up")
while not folder.joinpath("stop-request").exists():
    time.sleep(0.01)
print("asked", json.loads(folder.joinpath("stop-request").read_text())["reason"])
time.sleep(1.0)  # the commit takes its time, and SIGTERM must not come in between
folder.joinpath("stop-ack.new").write_text(json.dumps({"step": 7, "checkpoint": "c"}))
folder.joinpath("stop-ack.new").rename(folder / "stop-ack")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("preempted\n", "preempted"),
        ("stop-requested", "stop-requested"),
        ("?", "stop-requested"),
    ],
)
def test_a_stop_file_with_a_reason_stops_the_node_after_the_training_has_committed(
    place, text, reason
):
    place.write(SPEAKER)
    place.plan()
    file = place.folder / "17.0.stop"
    # An empty file only makes the later text seen at once on a network file system.
    file.touch()
    place.env[protocol.STOP_FILE] = str(file)
    process = place.start()
    wait_until(lambda: "up" in place.stdout())
    file.write_text(text)
    assert process.wait(LIMIT_S) == 143
    assert place.stdout() == f"up\nasked {reason}\nSIGTERM after answer\n"
    assert place.outcome()["cause"] == reason
    asked = [e["reason"] for e in place.events() if e["event"] == "stop-requested"]
    assert asked == [reason]


def test_a_script_that_ignores_sigterm_is_killed_at_the_deadline(place):
    place.write(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
        "while True: time.sleep(1)\n"
    )
    place.plan(stop_grace_s=2)
    process = place.start()
    wait_until(lambda: "up" in place.stdout())
    asked_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert time.monotonic() - asked_at >= 2.0
