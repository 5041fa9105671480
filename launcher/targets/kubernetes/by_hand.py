"""What kubectl would be told: a manifest to apply, and the commands that end a job."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from launcher.contract.errors import InputError
from launcher.targets.kubernetes.api import IN_CLUSTER, Cluster, Object, ObjectPlace
from launcher.targets.kubernetes.render import RenderedManifest


@dataclass(frozen=True, kw_only=True)
class KubernetesArtifact:
    """A plan as a manifest."""

    manifest: RenderedManifest
    namespace: str

    def shell(self, *, embed: bool = False) -> str:
        """A script that applies the manifest; its plan says whether the agent is in it."""
        text = self.manifest.yaml()
        return f"#!/bin/sh\nkubectl apply -n {self.namespace} -f - <<'EOF'\n{text}EOF\n"

    def shell_to_join(self) -> str:
        """Raises ``InputError``: a cluster's controllers start its nodes."""
        raise InputError("nodes of a cluster are not started by hand", "launcher scale RUN N")


def render_by_hand(cluster: Cluster, place: ObjectPlace, *, keep: bool) -> str:
    """The command that deletes a job, or, with ``keep``, suspends it."""
    if keep:
        return render_suspending(cluster, place, True)
    return f"kubectl delete {_named(cluster, place)}"


def render_suspending(cluster: Cluster, place: ObjectPlace, suspends: bool) -> str:
    """The command that suspends a job or, where it is suspended, has it go on."""
    patch = json.dumps(render_suspension(place.kind, suspends))
    return f"kubectl patch {_named(cluster, place)} --type merge -p {shlex.quote(patch)}"


def render_suspension(kind: str, suspends: bool = True) -> Object:
    """The merge patch that ends the pods of a job and keeps its object. ``kind`` is Kubernetes'."""
    spec = {"suspend": suspends}
    return {"spec": {"runPolicy": spec} if kind == "PyTorchJob" else spec}


def _named(cluster: Cluster, place: ObjectPlace) -> str:
    where = f"{place.kind.lower()} {place.name} -n {cluster.namespace}"
    if cluster.context != IN_CLUSTER:
        where += f" --context {shlex.quote(cluster.context)}"
    return where
