"""``python -m train``, held back: every optimizer step takes ``PACE_S`` at least.

Failures come by the clock: on one machine a training that runs as fast as it can is over before the
first of them, on another it goes on for an hour after the last.
"""

from __future__ import annotations

import runpy
import time
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

PACE_S = 0.2


def hold_back(*_: Any) -> None:
    """Called by torch after each step of any optimizer."""
    time.sleep(PACE_S)


if __name__ == "__main__":
    register_optimizer_step_post_hook(hold_back)
    runpy.run_module("train", run_name="__main__", alter_sys=True)
