"""Runs a script whose optimizer steps are slow, and one of which kills its process, once.

    faulty.py SCRIPT [its arguments]

SLOW_S: seconds for each step. KILL: rank and step of this start, such as 1:17. The folder HERE
remembers that it was done.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

slow_s = float(os.environ.get("SLOW_S", "0"))
rank, _, step = os.environ.get("KILL", "-1:0").partition(":")
steps = 0


def fail(*_: object) -> None:
    global steps
    steps += 1
    time.sleep(slow_s)
    done = Path(os.environ.get("HERE", "."), "killed")
    if os.environ.get("RANK") == rank and steps == int(step) and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(fail)
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
