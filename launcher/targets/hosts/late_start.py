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
    """The nodes that are still to be started, by their indices."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        self._lost: set[int] = set()
        self._lock = threading.RLock()

    def waits(self, node_index: int) -> bool:
        """Whether the node still waits for its host."""
        return node_index in self._waiting

    def is_lost(self, node_index: int) -> bool:
        """Whether the node has stopped waiting: its host did not come back."""
        return node_index in self._lost

    def drop(self, indices: set[int] | None = None) -> None:
        """Gives up these nodes, or all.

        A start that is under way is finished first, so that the end of the run finds its node.
        """
        with self._lock:
            self._waiting -= self._waiting if indices is None else indices

    @contextlib.contextmanager
    def starting(self, indices: set[int]) -> Iterator[bool]:
        """Whether they still wait; that does not change within the block."""
        with self._lock:
            yield indices <= self._waiting

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
        self._lost -= indices
        self._waiting |= indices
        deadline = time.monotonic() + BACK_LIMIT_S

        def keep_trying() -> None:
            while True:
                time.sleep(RETRY_S)
                if not indices <= self._waiting:
                    return
                try:
                    start()
                    break
                except TargetError as error:
                    if is_final(error):
                        break
                if time.monotonic() > deadline and may_give_up(self._waiting):
                    self._lost |= indices
                    break
            self.drop(indices)

        threading.Thread(target=keep_trying, daemon=True).start()
