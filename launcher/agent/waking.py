"""Continues (SIGCONT) a helper process of the node that was stopped alone.

A stopped fork server, guard or agent does not tell that a worker has ended, and the node would wait
for ever. What stops all processes of a node also stops the one that looks. Standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Mapping

from launcher.agent import processes
from launcher.contract.clock import Clock
from launcher.contract.process_stat import is_stopped, parent_of

STOPPED_LIMIT_S = 5.0
"""How long a helper may stand still before it is continued."""
LOOK_S = 1.0


class Waker:
    """Remembers since when which process is stopped. Called by one thread."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock, self._say = clock, say
        self._since: dict[int, float] = {}

    def look(self, helpers: Mapping[int, str]) -> None:
        """``helpers`` are pids and what each is; those that stand still too long are continued."""
        now = self._clock.monotonic()
        stopped = {pid for pid in helpers if is_stopped(pid)}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        for pid in stopped:
            if now - self._since[pid] >= STOPPED_LIMIT_S:
                del self._since[pid]
                self._say(f"{helpers[pid]} (pid {pid}) was stopped, and is continued")
                processes.send(pid, signal.SIGCONT)


def keep_awake(
    server_pid: Callable[[], int | None],
    workers: Callable[[], Collection[int]],
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Starts a thread that looks at the fork server and at the guards of ``workers``."""
    waker = Waker(clock, say)

    def look_on() -> None:
        while True:
            clock.sleep(LOOK_S)
            helpers = {
                guard: "the guard of a worker"
                for guard in map(parent_of, workers())
                if guard is not None and guard > 1
            }
            if (server := server_pid()) is not None:
                helpers[server] = "the process that forks workers"
            waker.look(helpers)

    threading.Thread(target=look_on, name="waker", daemon=True).start()
