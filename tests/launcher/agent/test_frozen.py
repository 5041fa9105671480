"""Helpers of a node that a signal has stopped, and an agent that nothing ends: real processes."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from launcher.agent.node import supervisor
from launcher.agent.stopping import OUTLIVE_LIMIT_S, Stop
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.node_plan import AgentSettings
from tests.waiting import wait_until


def freeze(process: psutil.Process) -> None:
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


WAITS_FOR_SIGNALS = """
import signal
from launcher.agent import processes
wanted = {signal.SIGTERM, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("up", flush=True)
while (found := processes.wait_for_signal(wanted, 0.3)) is None:
    pass
print(found[0])
"""


def test_a_process_that_is_continued_finds_the_signal_that_came_and_no_other():
    argv = [sys.executable, "-c", WAITS_FOR_SIGNALS]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "up\n"
        for signum in (None, None, signal.SIGTERM):
            freeze(psutil.Process(child.pid))
            time.sleep(0.4)
            if signum:
                child.send_signal(signum)
            child.send_signal(signal.SIGCONT)
            if signum is None:
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(0.4)
        assert child.stdout.read() == f"{int(signal.SIGTERM)}\n"


def test_an_agent_that_outlives_sigkill_is_left_behind(tmp_path, monkeypatch):
    """A process that hangs in the kernel cannot be made here: signals to this one are lost."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        node = supervisor.Supervisor.__new__(supervisor.Supervisor)
        long_ago = time.monotonic() - 1e4
        stop = Stop(reason=Cause.PREEMPTED, requested_at=long_ago, grace_s=1.0)
        stop.killed_at = time.monotonic() - OUTLIVE_LIMIT_S + 1.0
        vars(node).update(
            _agent_pid=child.pid,
            _clock=SystemClock(),
            _stop=stop,
            _shows_life_at=float("inf"),
            _files=supervisor.StopFiles(tmp_path),
            _task=SimpleNamespace(settings=AgentSettings()),
            _scratch=tmp_path,
        )
        monkeypatch.setattr(supervisor.processes, "send", lambda pid, signum: True)
        began_at = time.monotonic()
        assert os.waitstatus_to_exitcode(node._wait_for_agent()) == -signal.SIGKILL
        assert 0.5 < time.monotonic() - began_at < 30
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


STOPPED_CHILD = """
import os, signal, time
from launcher.agent import processes
from launcher.contract.process_stat import is_stopped
processes.adopt_orphans()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
while not is_stopped(child):
    time.sleep(0.01)
processes.end_children(polite_s=0.2)
assert processes.children_of(os.getpid()) == ()
"""


def test_children_that_are_stopped_end_all_the_same():
    done = subprocess.run([sys.executable, "-c", STOPPED_CHILD], timeout=30, check=False)
    assert done.returncode == 0
