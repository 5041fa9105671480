"""How a node leaves: what the others must know before, and how long its store stays for them."""

from __future__ import annotations

from launcher.agent.roster.head import Phase
from launcher.agent.roster.store import StoreClient
from launcher.agent.roster.view import State, status_in
from launcher.agent.roster.watch import Beat, listen, silent
from launcher.contract.clock import Clock

LOOK_S = 0.05
WAITING_SILENCE_S = 2.0
"""For a node that only waits this much silence is enough, as it has no work to lose."""


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


def wait_for_the_others(
    caller: StoreClient, state: State, detection_limit_s: float, clock: Clock
) -> None:
    """Blocks until each other member, and each node that waits, has left or is silent.

    A node that waits needs the store to learn that the run is closed.
    """
    finished = state.head.finished if state.head else ()
    waiting = frozenset(caller.waiting()) - {*state.members}
    others = tuple({*state.members, *finished, *waiting} - {state.seat})
    beats: dict[str, Beat] = {}
    while others:
        beats = listen(beats, caller.beats_of(others), LOOK_S)
        quiet = silent(beats, detection_limit_s) | (silent(beats, WAITING_SILENCE_S) & waiting)
        if all(s in quiet or status_in(b.text) == "l" for s, b in beats.items()):
            return
        clock.sleep(LOOK_S)
