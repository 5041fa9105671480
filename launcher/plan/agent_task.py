"""The node agent's settings from the job and the target, such as its hang limits, and the nodes
that may serve the rendezvous store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.contract.node_plan import (
    HANG_MAX_S,
    NEVER_S,
    AgentSettings,
    Elastic,
    NodePlan,
    StoreEndpoint,
)
from launcher.plan.target_facts import RUN_ID, TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

STORE_CANDIDATES = 3
"""How many nodes may serve the rendezvous store, one after the other. To lose all of them is no
coincidence any more."""


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What a run is for beside training: the fields of ``AgentSettings`` for that."""

    debug_rank: int | None = None
    debug_editor: bool = False
    hold_idle_s: float = 0.0


TRAINING = Purpose()


def plan_agent(
    job: JobSpec,
    facts: TargetFacts,
    run_id: str,
    stores: tuple[StoreEndpoint, ...],
    purpose: Purpose = TRAINING,
) -> AgentSettings | None:
    """The agent's settings; None if plain torchrun runs the workers."""
    if not job.uses_agent:
        return None
    agent = job.agent
    target = facts.agent or AgentSettings(health_port=agent.health.port, tee=False)
    return replace(
        target,
        start=job.start or "fresh",
        preload=agent.preload,
        stop_grace_s=job.stop_grace_s,
        same_failure_limit=agent.same_failure_limit,
        stores=() if target.meet_dir else stores,
        meet_dir=target.meet_dir.replace(RUN_ID, run_id),
        # A worker that stands in a debugger does not hang.
        hang_min_s=agent.hang_min_s if purpose.debug_rank is None else 0,
        hang_max_s=agent.hang_max_s or (HANG_MAX_S if job.max_restarts else NEVER_S),
        gpu_free_limit_s=agent.gpu_free_limit_s,
        health_host=agent.health.address,
        in_image=facts.agent_in_image,
        hold_idle_s=purpose.hold_idle_s,
        debug_rank=purpose.debug_rank,
        debug_editor=purpose.debug_editor,
    )


def plan_stores(
    nodes: tuple[NodePlan, ...], spare_ports: tuple[int, ...]
) -> tuple[StoreEndpoint, ...]:
    """Where the rendezvous store may be served, in the order in which nodes take over.

    Nodes with the same address need a port each: ``spare_ports``. Empty for a single node and for
    a static group.
    """
    first = nodes[0].rendezvous
    if len(nodes) == 1 or not isinstance(first, Elastic):
        return ()
    shared = len({node.local_addr for node in nodes}) == 1
    ports = (first.endpoint_port, *spare_ports) if shared else (first.endpoint_port,) * len(nodes)
    hosts = (first.endpoint_host, *(node.local_addr for node in nodes[1:]))
    return tuple(
        StoreEndpoint(host=host, port=port, node_index=index)
        for index, (host, port, _) in enumerate(
            zip(hosts, ports, range(STORE_CANDIDATES), strict=False)
        )
    )
