"""What the agent asks of a rendezvous handler beyond torch's interface.

The project's own backend answers; with a stock one each question has an answer that is right
for torch's handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.distributed.elastic.rendezvous import RendezvousHandler

from launcher.contract.agent_settings import ROSTER
from launcher.contract.reasons import Reason

if TYPE_CHECKING:
    from launcher.agent.roster.handler import RosterHandler
    from launcher.agent.roster.head import Membership

_REASONS = {
    "finished": Reason.COMPLETED,
    "failed": Reason.TRAINING_FAILED,
    "restarts-exhausted": Reason.RESTARTS_EXHAUSTED,
}


def register(backend: str) -> None:
    """Makes the backend known to torch; its own are known already."""
    if backend == ROSTER:
        from launcher.agent.roster import backend as roster

        roster.register()


class Link:
    """One handler, asked in one way whatever its backend is. ``roster`` is None for a
    stock one; the roster counts worker faults over the whole job itself."""

    def __init__(self, handler: RendezvousHandler) -> None:
        own = handler.get_backend() == ROSTER
        self.roster = cast("RosterHandler", handler) if own else None

    def is_stranded_by_fault(self) -> bool:
        """Whether a worker failed after other nodes had finished, too many to go on without."""
        roster = self.roster
        return roster is not None and roster.closed_reason == "stranded" and roster.cause == "fault"

    def fell_with_a_node(self) -> bool:
        """Whether the present group was formed because a node went, and not for a worker's fault.

        Stock handlers do not know; what a worker said is all there is to go by.
        """
        membership = self._membership()
        return membership is None or membership.cause.value != "fault"

    def closed_reason(self) -> Reason | None:
        """Why the run was closed, where the handler knows."""
        return _REASONS.get(self.roster.closed_reason) if self.roster else None

    def is_over(self) -> bool:
        """Whether no node can have work to do any more; stock handlers do not know."""
        return self.roster is None or self.roster.closed_reason not in ("", "fenced")

    def is_fenced_out(self) -> bool:
        """Whether the run was closed here because it goes on around another store."""
        return self.roster is not None and self.roster.closed_reason == "fenced"

    def generation(self) -> int | None:
        """The fencing generation of the present membership; None where nothing fences."""
        membership = self._membership()
        return membership.generation if membership is not None else None

    def carried(self) -> dict[str, str]:
        """Configuration for the handler of a next store, which starts without memory."""
        membership = self._membership()
        if self.roster is None or membership is None:
            return {}
        return {
            "nodes_before": str(len(membership.members)),
            "faults_before": str(self.roster.counts.get("fault", 0)),
            "generation_before": str(membership.generation),
            "finished_before": str(self.roster.finished),
        }

    def _membership(self) -> Membership | None:
        return self.roster.membership if self.roster is not None else None
