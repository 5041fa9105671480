"""Runs one daemon of the test cluster and everything that comes of it, and ends with its owner.

``python keeper.py COMMAND...``: the keeper adopts what daemonizes (slurmstepd does), so that all
processes of a node are its descendants. At the end of its standard input, which comes with the
owner's death too, all of them are killed. It ends by itself once none is left.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

import psutil

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.1


def kill_all() -> None:
    """Stops the tree before it kills it: as with power, no process sees another one die.

    Children first: the kernel sends SIGHUP and SIGCONT to a stopped process group whose last
    parent ends, and srun would use that moment to end the step on the other nodes.
    """
    tree = psutil.Process().children(recursive=True)[::-1]
    for code in (signal.SIGSTOP, signal.SIGKILL):
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(code)


def main(argv: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    owned = True
    with contextlib.suppress(ChildProcessError):
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if owned and select.select([sys.stdin], [], [], TICK_S)[0]:
                owned = False
            if not owned:
                kill_all()
                select.select([], [], [], TICK_S / 5)


main(sys.argv[1:])
