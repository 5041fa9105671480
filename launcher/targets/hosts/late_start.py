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


class LateStarts:
    """The nodes that still wait for their host, and those whose host did not come back."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.lost: set[int] = set()
        self._lock = threading.RLock()

    def drop(self, indices: set[int] | None = None) -> None:
        """Gives up these nodes, or all.

        A start that is under way is finished first, so that the end of the run finds its node.
        """
        with self._lock:
            self.waiting -= self.waiting if indices is None else indices

    @contextlib.contextmanager
    def starting(self, indices: set[int]) -> Iterator[bool]:
        """Whether they still wait; that does not change within the block."""
        with self._lock:
            yield indices <= self.waiting

    def add(
        self,
        indices: set[int],
        start: Callable[[], None],
        *,
        may_give_up: Callable[[set[int]], bool],
        is_final: Callable[[TargetError], bool],
    ) -> None:
        """Calls ``start`` in a thread until it succeeds.

        Gives up after an error that ``is_final``, or where ``may_give_up`` allows it for the nodes
        that wait at the deadline.
        """
        self.lost -= indices
        self.waiting |= indices
        deadline = time.monotonic() + BACK_LIMIT_S

        def keep_trying() -> None:
            while True:
                time.sleep(RETRY_S)
                if not indices <= self.waiting:
                    return
                try:
                    start()
                    break
                except TargetError as error:
                    if is_final(error):
                        break
                if time.monotonic() > deadline and may_give_up(self.waiting):
                    self.lost |= indices
                    break
            self.drop(indices)

        threading.Thread(target=keep_trying, daemon=True).start()
