"""Time as those measure it who wait for others."""

import signal
import subprocess
import sys
import time

from launcher.contract.process_stat import is_stopped
from tests.waiting import wait_until

STOPPED_S = 1.5
PROGRAM = """
import sys, time
from launcher.contract import clock
clock.STOOD_S, clock.TICK_S = 1.0, 0.05
awake = clock.AwakeClock()
began, awake_began = time.monotonic(), awake.monotonic()
print("ready", flush=True)
sys.stdin.readline()
print(time.monotonic() - began, awake.monotonic() - awake_began, awake.stood_s)
"""


def test_time_in_which_the_process_was_stopped_does_not_count():
    argv = (sys.executable, "-c", PROGRAM)
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        time.sleep(STOPPED_S)
        process.send_signal(signal.SIGCONT)
        told, _ = process.communicate("\n")
    spent_s, awake_s, stood_s = map(float, told.split())
    assert stood_s >= STOPPED_S
    assert abs(spent_s - awake_s - stood_s) < 0.1
