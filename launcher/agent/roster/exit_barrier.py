"""Replaces the exit barrier of torch's agent.

torch's agent waits there for the others, at most 300 s and without running signal handlers; then it
ends, and the store with it. Here the wait lasts while another member works, and a signal ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed

PrefixStore: Any = torch.distributed.PrefixStore  # type: ignore[attr-defined]

EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""What the barrier's keys begin with. If torch renamed it, the barrier would be torch's again."""
ARRIVED_KEY = f"{EXIT_BARRIER}/num_members"
"""Counts the agents at the barrier."""


class AgentStore(PrefixStore):  # type: ignore[misc]
    """What torch's agent gets with a membership; only the barrier differs from a plain store."""

    def __init__(
        self, prefix: str, store: Any, finish: Callable[[], None], wait: Callable[[], None]
    ) -> None:
        super().__init__(prefix, store)
        self._finish, self._wait = finish, wait

    def add(self, key: str, amount: int) -> int:
        if not key.startswith(EXIT_BARRIER):
            return int(super().add(key, amount))
        self._finish()
        return 0

    def get(self, key: str) -> bytes:
        # How torch 2.4 waits at the barrier.
        if not key.startswith(EXIT_BARRIER):
            return bytes(super().get(key))
        self._wait()
        return b""

    def wait(self, keys: list[str], *timeout: Any) -> None:
        if any(key.startswith(EXIT_BARRIER) for key in keys):
            self._wait()
        else:
            super().wait(keys, *timeout)
