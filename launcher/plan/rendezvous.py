"""How nodes find each other: which rendezvous a job gets, at which address and port, with which
timeouts, and whether it needs a majority of the nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.contract.errors import InputError
from launcher.contract.node_plan import ROSTER, Elastic, Env, NodePlan, Static

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

STATIC_PORT = 29500
C10D_PORT = 29400

# Read timeout: a node that still pulls its image must not end the others' rendezvous.
# Last call and keep-alives: torch's defaults (30 s, 5 s x 3) cost 44 s when a node is lost.
# 2 s x 3 stays above what a loaded 2-core machine delays a heartbeat by.
READ_TIMEOUT_S = 300
CONF_DEFAULTS: Env = (("read_timeout", str(READ_TIMEOUT_S)),)
CONF_DEFAULTS_SINCE_2_7: Env = (
    ("last_call_timeout", "2"),
    ("keep_alive_interval", "2"),
    ("keep_alive_max_attempt", "3"),
)


def plan_backend(job: JobSpec) -> str:
    """The job's own backend, else the one that suits its engine."""
    if job.rdzv.backend is not None:
        return job.rdzv.backend
    if job.uses_agent:
        return ROSTER
    return "static" if job.nnodes.min == job.nnodes.max > 1 else "c10d"


def plan_rendezvous(
    job: JobSpec,
    *,
    node_index: int,
    host: str,
    port: int | None,
    id: str,
    torch_version: tuple[int, int],
    fence_dir: str = "",
) -> Static | Elastic:
    """The rendezvous of one node; ``host`` is where node 0 is reached.

    The job's port wins over ``port``, the target's proposal; the default is the backend's. A
    single node takes any free port. ``fence_dir`` is the checkpoint folder as the node sees it, if
    all nodes share it. Raises ``InputError`` for several nodes at ``localhost``: each would train
    alone without an error. Nodes that share a machine meet at its loopback *address*.
    """
    backend = plan_backend(job)
    several = job.nnodes.max > 1
    if several and host == "localhost":
        raise InputError(
            f"rendezvous endpoint is localhost, but nnodes is {job.nnodes}: each would be alone",
            "give an address that all nodes reach: --rdzv-endpoint HOST:PORT",
        )
    if backend == "static":
        port = job.rdzv.port or port or STATIC_PORT
        return Static(master_addr=host, master_port=port, id=id)
    if job.rdzv.endpoint is not None:
        host, _, text = job.rdzv.endpoint.rpartition(":")
        host, port = host.strip("[]"), int(text)
    elif not several and job.rdzv.port is None:
        port = 0
    return Elastic(
        backend=backend,
        endpoint_host=host,
        endpoint_port=job.rdzv.port or (C10D_PORT if port is None else port),
        id=id,
        is_host=backend in ("c10d", ROSTER) and node_index == 0,
        conf=_conf(job, backend, torch_version, fence_dir),
    )


def _conf(job: JobSpec, backend: str, torch_version: tuple[int, int], fence_dir: str) -> Env:
    if backend == ROSTER:
        return _roster_conf(job, fence_dir)
    if backend != "c10d":
        return job.rdzv.conf.pairs
    defaults = CONF_DEFAULTS + (CONF_DEFAULTS_SINCE_2_7 if torch_version >= (2, 7) else ())
    merged = {**dict(defaults), **dict(job.rdzv.conf.pairs)}
    return tuple(merged.items())


def _roster_conf(job: JobSpec, fence_dir: str) -> Env:
    conf = job.rdzv.conf
    given = {
        "detection_limit_s": f"{job.agent.detection_limit_s:g}",
        "join_timeout_s": conf.join_timeout,
        "last_call_s": conf.last_call_timeout,
        # A node that still pulls its image must not end the others' rendezvous.
        "connect_timeout_s": conf.read_timeout or READ_TIMEOUT_S,
        "fence_dir": fence_dir or None,
    }
    return tuple((key, str(value)) for key, value in given.items() if value is not None)


def needs_majority(node: NodePlan, living: int) -> bool:
    """Whether so many nodes go on only if they are more than half of the last group.

    The coordinator's rule: the others might train, too, and no folder that all share fences one of
    the two groups off.
    """
    rendezvous = node.rendezvous
    if not isinstance(rendezvous, Elastic) or rendezvous.backend != ROSTER:
        return False
    return "fence_dir" not in dict(rendezvous.conf) and living + node.min_nodes <= node.max_nodes


def format_endpoint(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets: torch reads ``fd00::1`` as port 1."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint_of(rendezvous: Static | Elastic) -> str:
    """``host:port`` at which nodes meet."""
    match rendezvous:
        case Static(master_addr=host, master_port=port):
            return format_endpoint(host, port)
        case Elastic(endpoint_host=host, endpoint_port=port):
            return format_endpoint(host, port)


def backend_of(rendezvous: Static | Elastic) -> str:
    """Name of the backend as torchrun spells it."""
    return "static" if isinstance(rendezvous, Static) else rendezvous.backend
