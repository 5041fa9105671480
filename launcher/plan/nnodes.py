"""How many nodes a run has, from what the job asks for and the nodes that are there; also where the
job says nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError
from launcher.job.values import NodeRange

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class NodesThere:
    """Nodes that somebody has started or allocated before the run is planned."""

    count: int
    says: str
    """Who gave how many: ``srun started 2 nodes``."""
    fix: str
    """What to do if the job needs another number."""
    are_started: bool = False
    """Whether each of them runs already, so that none can be left out."""
    gives: tuple[tuple[str, object], ...] = ()
    """Keys of the job, and their values there if the job leaves them open."""


def decide_nnodes(job: JobSpec, there: NodesThere) -> JobSpec:
    """The job with its final number of nodes: all that are there, if it names no number.

    Keys that it leaves open are as the nodes have them. Raises ``KeyInputError`` if it needs
    another number.
    """
    wanted = job.nnodes
    if "nnodes" not in job.model_fields_set:
        nodes = NodeRange(there.count, there.count)
    elif wanted.min > there.count or (there.are_started and there.count > wanted.max):
        raise KeyInputError(
            ("nnodes",), f"the job has nnodes {wanted}, and {there.says}", there.fix
        )
    else:
        nodes = NodeRange(wanted.min, min(wanted.max, there.count))
    asks = job.model_fields_set | ({"nproc_per_node"} if job.devices else set())
    given = {key: value for key, value in there.gives if key not in asks}
    return job.model_copy(update={"nnodes": nodes, **given})
