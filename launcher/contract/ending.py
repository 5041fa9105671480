"""Why a node or a run ended, as whoever judges says it first."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract.causes import Cause


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A cause and what says so. ``at`` is in seconds since the epoch; 0 where it is now."""

    cause: Cause
    detail: str = ""
    at: float = 0.0
