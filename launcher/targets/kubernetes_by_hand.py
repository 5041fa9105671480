"""What kubectl would be told to end a job."""

from __future__ import annotations

import json
import shlex

from launcher.targets.kubernetes_api import IN_CLUSTER, Cluster, Object, Place


def render_by_hand(cluster: Cluster, place: Place, *, keep: bool) -> str:
    """The command that deletes a job, or, with ``keep``, suspends it."""
    where = f"{place.kind.lower()} {place.name} -n {cluster.namespace}"
    if cluster.context != IN_CLUSTER:
        where += f" --context {shlex.quote(cluster.context)}"
    if not keep:
        return f"kubectl delete {where}"
    patch = json.dumps(render_suspension(place.kind))
    return f"kubectl patch {where} --type merge -p {shlex.quote(patch)}"


def render_suspension(kind: str) -> Object:
    """The merge patch that ends the pods of a job and keeps its object. ``kind`` is Kubernetes'."""
    suspends = {"suspend": True}
    return {"spec": {"runPolicy": suspends} if kind == "PyTorchJob" else suspends}
