"""Plans of one node, for tests that care for a part of them."""

from typing import Any

from launcher.contract.node_plan import Elastic, NodePlan


def node_plan(rendezvous: dict[str, Any] | None = None, **fields: Any) -> NodePlan:
    """One worker on the first of one to two nodes that meet by the roster, unless told."""
    meets = {"backend": "roster", "endpoint_host": "-", "endpoint_port": 1, "id": "r"}
    given: dict[str, Any] = {
        "node_index": 0,
        "name": "n-0",
        "local_addr": "127.0.0.1",
        "min_nodes": 1,
        "max_nodes": 2,
        "nproc_per_node": 1,
        "max_restarts": 3,
        "rendezvous": Elastic(**{**meets, "is_host": False, **(rendezvous or {})}),
        "command": ("t.py",),
        "env": (),
        "log_dir": "/run/nodes/0/0",
    }
    return NodePlan(**{**given, **fields})
