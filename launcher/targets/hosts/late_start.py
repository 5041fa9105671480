"""Starts nodes whose host is away, as soon as the host is reached again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from launcher.contract.errors import TargetError

RETRY_S = 2.0
BACK_LIMIT_S = 600.0
"""How long a run waits for a host that it needs; for others it waits until it ends."""


class HostWait:
    """One wait for the hosts of some nodes, told from later waits for the same nodes."""


class LateStarts:
    """The nodes that still wait for their host, and those whose host did not come back."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self._waits: dict[int, HostWait] = {}
        """The newest wait of each node that still waits. Replaced as a whole: readers that may not
        wait for a start that is under way take no lock."""
        self._lock = threading.RLock()

    @property
    def waiting(self) -> set[int]:
        """The nodes that still wait."""
        return set(self._waits)

    def drop(self, indices: set[int] | None = None) -> None:
        """Gives up these nodes, or all.

        A start that is under way is finished first, so that the end of the run finds its node.
        """
        with self._lock:
            left = set() if indices is None else self.waiting - indices
            self._waits = {index: wait for index, wait in self._waits.items() if index in left}

    @contextlib.contextmanager
    def starting(self, indices: set[int], wait: HostWait | None) -> Iterator[bool]:
        """Whether ``wait`` still holds for all of them; that does not change within the block.

        Without a wait they are started at once, and nobody gives that up.
        """
        with self._lock:
            yield wait is None or self._holds(indices, wait)

    def add(
        self,
        indices: set[int],
        start: Callable[[HostWait], None],
        *,
        may_give_up: Callable[[set[int]], bool],
        is_final: Callable[[TargetError], bool],
    ) -> None:
        """Calls ``start`` in a thread until it succeeds. Earlier waits for these nodes end.

        Gives up after an error that ``is_final``, or where ``may_give_up`` allows it for the nodes
        that wait at the deadline.
        """
        wait, deadline = HostWait(), time.monotonic() + BACK_LIMIT_S
        with self._lock:
            self.lost -= indices
            self._waits = self._waits | dict.fromkeys(indices, wait)

        def is_over(error: TargetError) -> bool:
            with self._lock:
                # What an earlier wait finds says nothing of the newer one's nodes.
                if not self._holds(indices, wait) or is_final(error):
                    return True
                if time.monotonic() <= deadline or not may_give_up(self.waiting):
                    return False
                self.lost |= indices
                return True

        def keep_trying() -> None:
            while True:
                time.sleep(RETRY_S)
                if not self._holds(indices, wait):
                    break
                try:
                    start(wait)
                    break
                except TargetError as error:
                    if is_over(error):
                        break
            self._end(wait)

        threading.Thread(target=keep_trying, daemon=True).start()

    def _holds(self, indices: set[int], wait: HostWait) -> bool:
        waits = self._waits
        return all(waits.get(index) is wait for index in indices)

    def _end(self, wait: HostWait) -> None:
        """Its nodes wait no longer, but for those that a newer wait has taken over."""
        with self._lock:
            self._waits = {index: own for index, own in self._waits.items() if own is not wait}
