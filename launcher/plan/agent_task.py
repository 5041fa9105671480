"""What the node agent is told beside its node's plan: settings, and who serves the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.contract.agent_settings import ROSTER, AgentSettings, StoreEndpoint
from launcher.contract.node_plan import Elastic, NodePlan
from launcher.plan.target_facts import AgentFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

STORE_CANDIDATES = 3
"""Hosts that may serve the rendezvous store one after the other: more losses than that, of just
these nodes, are no longer chance."""


def plan_agent(
    job: JobSpec, target: AgentFacts | None, stores: tuple[StoreEndpoint, ...]
) -> AgentSettings | None:
    """The agent's settings; None where plain torchrun runs the workers."""
    if not job.uses_agent:
        return None
    agent = job.agent
    # Without a word of the target, the launcher follows the workers' own files.
    target = target or AgentFacts(identity="plan", health_port=agent.health.port, tee=False)
    return AgentSettings(
        start=job.start or "fresh",
        preload=agent.preload,
        stop_grace_s=job.stop_grace_s,
        same_failure_limit=agent.same_failure_limit,
        stores=stores,
        hang_min_s=agent.hang_min_s,
        hang_max_s=agent.hang_max_s,
        gpu_free_limit_s=agent.gpu_free_limit_s,
        disk_free_limit_s=agent.disk_free_limit_s,
        health_host=agent.health.address,
        health_port=target.health_port,
        identity=target.identity,
        tee=target.tee,
    )


def plan_stores(
    nodes: tuple[NodePlan, ...], spare_ports: tuple[int, ...]
) -> tuple[StoreEndpoint, ...]:
    """The hosts of the rendezvous store, in the order in which they take over.

    ``spare_ports`` are for nodes that share one network, where a port serves one store alone.
    Empty where there is nothing to choose: one node, or a backend that is not the agent's own.
    """
    first = nodes[0].rendezvous
    if len(nodes) == 1 or not isinstance(first, Elastic) or first.backend != ROSTER:
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
