"""The settings of a plan as shell exports, for people who start torchrun by hand."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from launcher.agent.addresses import address_towards
from launcher.contract.errors import InputError
from launcher.contract.node_plan import Env, NodePlan, Static
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, plan_run
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.plan.torchrun import as_variables, parse_torch_version, plan_options
from launcher.targets.shell import render_exports, render_line


def plan_by_hand(
    job: JobSpec,
    *,
    endpoint: str | None,
    node_rank: int,
    local_addr: str | None,
    run_root: str,
    cwd: str,
) -> LaunchPlan:
    """The job's plan with the rendezvous at ``endpoint``, for the node on this machine.

    The run id is the job's rendezvous id or name, as all nodes need the same. Raises
    ``InputError``.
    """
    if node_rank >= job.nnodes.max:
        raise InputError(
            f"--node-rank {node_rank}, but nnodes is {job.nnodes}",
            f"a node rank from 0 to {job.nnodes.max - 1}, or a larger --nnodes",
        )
    if endpoint is None and job.nnodes.max > 1:
        raise InputError(
            f"nnodes is {job.nnodes}, and no address was given at which the nodes meet",
            "--rdzv-endpoint HOST[:PORT], a name or address of node 0 that all nodes reach",
        )
    host, port = parse_endpoint(endpoint or "127.0.0.1")
    if port is not None and job.rdzv.port is not None and port != job.rdzv.port:
        raise InputError(
            f"--rdzv-endpoint {endpoint}, but the job says rdzv.port: {job.rdzv.port}",
            "leave one of them out",
        )
    address = local_addr or read_local_addr(host)
    on_this_machine = job.nnodes.max == 1 or address.startswith("127.") or address == "::1"
    facts = TargetFacts(
        target="by hand",
        accelerator="cpu",
        machine=MachineFacts(
            cpu_count=os.cpu_count() or 1,
            device_ids=None,  # the node uses whatever its machine has
            address=address,
            # gloo on loopback would not find nodes on other machines.
            loopback="lo" if on_this_machine else None,
        ),
        run_root=run_root,
        cwd=cwd,
        ports=() if port is None else (port,),
        rdzv_host=host,
    )
    # People start torchrun by hand, not the agent.
    return plan_run(job.without_agent(), facts, run_id=job.rdzv.id or job.name)


def render_by_hand(plan: LaunchPlan, node_rank: int) -> str:
    """Lines for ``eval`` in a POSIX shell, and a comment with the command to type next."""
    node = plan.nodes[node_rank]
    options = plan_options(node, parse_torch_version(plan.torch_version), plan.stop_grace_s)
    then = render_line(("torchrun", *node.literal_command))
    lines = render_exports((*_classic(node), *node.env, *as_variables(options)))
    return f"{lines}# then, in the folder of the training code: {then}\n"


def parse_endpoint(text: str) -> tuple[str, int | None]:
    """``host``, ``host:port``, ``[v6]``, ``[v6]:port``. Raises ``InputError`` for others."""
    is_plain_v6 = text.count(":") > 1 and not text.startswith("[")
    try:
        parts = urlsplit(f"//[{text}]" if is_plain_v6 else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise InputError(
            f"--rdzv-endpoint {text!r} is not HOST[:PORT]", "such as gpu1:29400 or [fd00::1]:29400"
        )
    return host, port


def read_local_addr(endpoint_host: str) -> str:
    """This machine's address on the way to the endpoint; sends nothing.

    torchrun's default is the machine's full name, which other nodes often cannot resolve.
    """
    try:
        return address_towards(endpoint_host)
    except OSError:
        raise InputError(
            f"{endpoint_host} cannot be resolved or reached from this machine",
            "check --rdzv-endpoint, or give this node's address: --local-addr HOST",
        ) from None


def _classic(node: NodePlan) -> Env:
    if not isinstance(node.rendezvous, Static):
        return ()
    return (
        ("MASTER_ADDR", node.rendezvous.master_addr),
        ("MASTER_PORT", str(node.rendezvous.master_port)),
        ("WORLD_SIZE", str(node.max_nodes * node.nproc_per_node)),
        ("NODE_RANK", str(node.node_index)),
    )
