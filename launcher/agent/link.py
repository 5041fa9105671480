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
    """One handler, asked in one way whatever its backend is."""

    def __init__(self, handler: RendezvousHandler) -> None:
        own = handler.get_backend() == ROSTER
        self._roster = cast("RosterHandler", handler) if own else None

    @property
    def counts_faults(self) -> bool:
        """Whether the handler itself counts worker faults over the whole job."""
        return self._roster is not None

    def close(self) -> None:
        """Ends the run for all nodes, because of a failure; torch closes stock handlers itself."""
        if self._roster is not None:
            self._roster.close("failed")

    def finish(self) -> None:
        """Says that this node's workers have all succeeded."""
        if self._roster is not None:
            self._roster.finish()

    def leave_finished(self) -> None:
        """Says so, and that this node goes without waiting for the others."""
        if self._roster is not None:
            self._roster.leave_finished()

    def wait_until_closed(self) -> None:
        """Blocks until the others have finished too, or the run has ended otherwise."""
        if self._roster is not None:
            self._roster.wait_until_closed()

    def is_stranded_by_fault(self) -> bool:
        """Whether a worker failed after other nodes had finished, too many to go on without."""
        roster = self._roster
        return roster is not None and roster.closed_reason == "stranded" and roster.cause == "fault"

    def fell_with_a_node(self) -> bool:
        """Whether the present group was formed because a node went, and not for a worker's fault.

        Stock handlers do not know; what a worker said is all there is to go by.
        """
        membership = self._roster.membership if self._roster is not None else None
        return membership is None or membership.cause.value != "fault"

    def leave(self) -> None:
        """Says that this node goes, so that the others need not find out."""
        if self._roster is not None:
            self._roster.leave()

    def closed_reason(self) -> Reason | None:
        """Why the run was closed, where the handler knows."""
        return _REASONS.get(self._roster.closed_reason) if self._roster is not None else None

    def is_over(self) -> bool:
        """Whether no node can have work to do any more; stock handlers do not know."""
        return self._roster is None or self._roster.closed_reason not in ("", "fenced")

    def is_fenced_out(self) -> bool:
        """Whether the run was closed here because it goes on around another store."""
        return self._roster is not None and self._roster.closed_reason == "fenced"

    def generation(self) -> int | None:
        """The fencing generation of the present membership; None where nothing fences."""
        membership = self._roster.membership if self._roster is not None else None
        return membership.generation if membership is not None else None

    def newcomers(self) -> int:
        """Nodes that wait for ``admit``."""
        return self._roster.newcomers if self._roster is not None else 0

    def admit(self) -> None:
        """Lets them in."""
        if self._roster is not None:
            self._roster.admit()

    def carried(self) -> dict[str, str]:
        """Configuration for the handler of a next store, which starts without memory."""
        if self._roster is None or self._roster.membership is None:
            return {}
        return {
            "nodes_before": str(len(self._roster.membership.members)),
            "faults_before": str(self._roster.counts.get("fault", 0)),
            "generation_before": str(self._roster.membership.generation),
            "finished_before": str(self._roster.finished),
        }
