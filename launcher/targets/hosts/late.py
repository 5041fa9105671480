"""Nodes whose host is away: each is started as soon as its host is reached again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from launcher.contract.errors import TargetError

RETRY_S = 2.0
BACK_LIMIT_S = 600.0
"""How long a run waits for a host that it cannot do without; one that can, waits for ever."""


class LateStarts:
    """The nodes that are still to be started, by their indices."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        self._lost: set[int] = set()
        self._lock = threading.RLock()

    def waits(self, node_index: int) -> bool:
        """Whether its host is still awaited."""
        return node_index in self._waiting

    def is_lost(self, node_index: int) -> bool:
        """Whether its host was awaited in vain."""
        return node_index in self._lost

    def drop(self, indices: set[int] | None = None) -> None:
        """These, or all, are no longer to be started; one that is being started just now is waited
        for, so that whoever ends the run finds it."""
        with self._lock:
            self._waiting -= self._waiting if indices is None else indices

    @contextlib.contextmanager
    def starting(self, indices: set[int]) -> Iterator[bool]:
        """Whether they are still to be started, which does not change within the block."""
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
        """Calls ``start`` until it does not raise, in a thread of its own.

        Ends without it where ``is_final`` says so of an error, or ``may_give_up`` of the nodes that
        wait by then.
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
