"""Events and actions of the roster's state machine: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.agent.roster.membership import Membership


# -- events ------------------------------------------------------------------------------------
class PlainEvent(enum.Enum):
    """Events that carry nothing."""

    PULSE = "pulse"
    """Time to write the beat and to look around."""
    LEAVE = "leave"
    """This node leaves on purpose; the others re-form without it."""
    FINISH = "finish"
    """This node's workers have all succeeded; it joins no further round."""
    ADMIT = "admit"
    """The running group has committed: newcomers may come in."""


@dataclass(frozen=True)
class Join:
    """The agent wants a rendezvous; ``card`` is where its rank 0 may be reached."""

    card: str


@dataclass(frozen=True)
class Close:
    """The run is over, for all nodes."""

    reason: str


@dataclass(frozen=True)
class Fenced:
    """There is a later generation, taken in another store (``foreign``) or in this one."""

    foreign: bool


@dataclass(frozen=True)
class Generation:
    """The number that ``TakeGeneration`` asked for; ``None`` when none could be taken."""

    number: int | None


@dataclass(frozen=True)
class LineClosed:
    """A member counts as gone: its connection was closed in order, or it was dialled in vain."""

    seat: str


@dataclass(frozen=True)
class LineOpen:
    """A member that counted as gone answers after all, or is no longer watched."""

    seat: str


@dataclass(frozen=True)
class Done:
    """A ``Write`` or ``Enlist`` was carried out."""


@dataclass(frozen=True)
class Values:
    """The answer to a ``Fetch``."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Swapped:
    """The answer to a ``Swap``: what the key holds now."""

    text: str


Event = (
    PlainEvent
    | Join
    | Close
    | Fenced
    | Generation
    | LineClosed
    | LineOpen
    | Done
    | Values
    | Swapped
)


# -- actions -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Write:
    """Set ``key``."""

    key: str
    text: str


@dataclass(frozen=True)
class Enlist:
    """Append a seat to the list of all that ever came; ``+`` before it: it has finished."""

    seat: str


@dataclass(frozen=True)
class Fetch:
    """Get all ``keys``, which exist."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Swap:
    """Replace the head's text ``expected`` (empty: no head yet) by ``desired``, atomically."""

    expected: str
    desired: str


@dataclass(frozen=True)
class TakeGeneration:
    """Take the next generation from shared storage; may be slow, answered by ``Generation``."""


@dataclass(frozen=True)
class Deliver:
    """``next_rendezvous`` returns."""

    membership: Membership


@dataclass(frozen=True)
class Refuse:
    """``next_rendezvous`` raises: ``closed``, ``timeout`` or ``replaced``."""

    kind: str
    text: str


Action = Write | Enlist | Fetch | Swap | TakeGeneration | Deliver | Refuse
StoreAction = Write | Enlist | Fetch | Swap
