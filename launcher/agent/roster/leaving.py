"""How a node leaves: torch's exit barrier, and how long its store stays for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed

from launcher.agent.roster.membership import Phase
from launcher.agent.roster.store import StoreClient
from launcher.agent.roster.view import Beat, State, listen, silent, status_in
from launcher.contract.clock import Clock

PrefixStore: Any = torch.distributed.PrefixStore  # type: ignore[attr-defined]

EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""The prefix of the barrier's keys. If torch renamed it, torch's own barrier would be used."""
LOOK_S = 0.05


def is_closed(state: State) -> bool:
    """Whether no further round will be formed."""
    return state.head is not None and state.head.phase is Phase.CLOSED


def has_parted(state: State) -> bool:
    """Whether the others know that this node goes, and none of them needs it."""
    parts = is_closed(state) or not state.belongs or (state.has_finished and not state.leads)
    return state.said == "l" and parts


def is_known_to_have_finished(state: State) -> bool:
    """Whether the others know that this node's workers have all succeeded, or need not know."""
    return state.has_finished or is_closed(state)


def wait_for_the_others(caller: StoreClient, state: State, clock: Clock) -> None:
    """Blocks until each other member, and each node that waits, has left or is silent.

    A node that waits needs the store to learn that the run is closed.
    """
    finished = state.head.finished if state.head else ()
    waiting = frozenset(caller.waiting()) - {*state.members}
    others = tuple({*state.members, *finished, *waiting} - {state.seat})
    beats: dict[str, Beat] = {}
    while others:
        beats = listen(beats, caller.beats_of(others), LOOK_S)
        # A node that only waits has no work to lose.
        quiet = silent(beats, state.rules.detection_limit_s) | (silent(beats, 2.0) & waiting)
        if all(s in quiet or status_in(b.text) == "l" for s, b in beats.items()):
            return
        clock.sleep(LOOK_S)


class AgentStore(PrefixStore):  # type: ignore[misc]
    """The store of torch's agent, with another exit barrier.

    At torch's own the agent waits 300 s at most, and runs no signal handlers; then it ends, and the
    store with it. Here it waits while another member works, and a signal ends the wait.
    """

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
