"""How often one looks at what cannot tell by itself, the wait for it, and how soon a cut connection
is tried again.

Standard library only, and no newer than Python 3.9: hosts import it with a Python of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:  # hosts do not import typing, which takes long
    from typing import Any

SOON_S = 0.05
"""What comes in a moment, and somebody waits for it: an answer, the end of a process."""
POLL_S = 0.1
"""What may take long on this machine: a run, its output, an agent that must stop."""
LOOK_S = 0.25
"""What costs more to look at: the processes of workers, a folder that nodes share."""
SLOW_LOOK_S = 1.0
"""What seldom comes, or is asked of others: a request to stop, a run that no launcher follows."""
RARE_LOOK_S = 5.0
"""What hardly ever changes: the newest generation, the events of a pod that is missing."""
RETRY_S = 1.0
"""A connection that was cut: to a host, or to a cluster's API."""


def wait_until(
    is_done: Callable[[], object],
    limit_s: float,
    longest_s: float = POLL_S,
    clock: Any = None,
) -> bool:
    """Waits at most ``limit_s``; returns whether it is done. Looks at least every ``longest_s``.

    ``clock`` is a ``Clock``; None: the machine's.
    """
    timer = clock or time
    deadline, pause_s = timer.monotonic() + limit_s, min(0.5, longest_s)
    while not (done := is_done()) and timer.monotonic() < deadline:
        timer.sleep(pause_s)
        pause_s = min(longest_s, 2 * pause_s)
    return bool(done)
