"""Stands where SIGTERM finds a training; told how by its argument, says when it is there."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from fabric_train.loop import preemption
from fabric_train.loop.preemption import exit_on_sigterm, finish_before_exit

how, file = sys.argv[1], Path(sys.argv[2])
if how != "endless":
    preemption.GRACE_S = 60.0  # a busy disk may take the file after more than a second


class Work:
    def finish(self, limit_s: float) -> None:
        if how == "endless":
            time.sleep(3600)
        file.write_text(f"{limit_s:.1f}")


work = Work()
finish_before_exit(work.finish)
exit_on_sigterm(Path(os.environ["NODE"]) if "NODE" in os.environ else None)
if how == "child":
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    status = os.waitpid(pid, 0)[1]
    print("child ended with", os.waitstatus_to_exitcode(status), flush=True)
    sys.exit(0)
print("ready", flush=True)
if how == "held":
    # In C code that keeps the interpreter's lock for a while, as a collective may.
    ctypes.PyDLL(None).sleep(2)
ctypes.CDLL(None).pause()
while True:
    time.sleep(60)
