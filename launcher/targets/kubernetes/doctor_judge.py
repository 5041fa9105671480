"""Findings on what a job names: None stands for an object that is not there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.targets.kubernetes.kubeconfig import kubectl
from launcher.targets.kubernetes.pod_states import Object

CLAIM, SECRET, PULL_SECRET = "PersistentVolumeClaim", "Secret", "image pull secret"
"""Rows about what the job names."""
PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")


def judge_secret(secret: Object | None, name: str, namespace: str, keys: Sequence[str]) -> Finding:
    """The Secret of the job's variables, which has to have ``keys``."""
    place, flag = f"Secret {name}", f"{name} -n {namespace}"
    if secret is None:
        values = "".join(f" --from-literal={key}=..." for key in keys)
        fix = f"{kubectl()} create secret generic {flag}{values}"
        return failed(SECRET, place, "is not there", fix)
    missing = [key for key in keys if key not in (secret.get("data") or {})]
    if missing:
        patch = ", ".join(f'"{key}": "..."' for key in missing)
        fix = f"{kubectl()} patch secret {flag} -p '{{\"stringData\": {{{patch}}}}}'"
        return failed(SECRET, place, f"has no {', '.join(missing)}", fix)
    return ok(SECRET, place, f"is there, with {', '.join(keys)}")


def judge_pull_secret(secret: Object | None, name: str, namespace: str) -> Finding:
    """A Secret with which the nodes pull the image."""
    fix = (
        f"{kubectl()} create secret docker-registry {name} -n {namespace} --docker-server=SERVER "
        "--docker-username=NAME --docker-password=PASSWORD"
    )
    if secret is None:
        return failed(PULL_SECRET, f"Secret {name}", "is not there", fix)
    if secret.get("type") not in PULL_TYPES:
        told = f"is of type {secret.get('type')}, with which no image is pulled"
        return failed(PULL_SECRET, f"Secret {name}", told, fix)
    return ok(PULL_SECRET, f"Secret {name}", "is there")


def judge_claim(claim: Object | None, name: str, namespace: str, node_count: int) -> Finding:
    """A claim that so many nodes write to."""
    place, flag = f"{CLAIM} {name}", f"{name} -n {namespace}"
    if claim is None:
        fix = f"{kubectl()} apply -f k8s/base/storage.yaml, as {flag}"
        return failed(CLAIM, place, "is not there", fix)
    phase = claim.get("status", {}).get("phase", "Pending")
    modes = claim["spec"].get("accessModes") or []
    look = f"{kubectl()} describe pvc {flag}"
    if phase == "Pending":
        # This is right if the storage class waits for the first pod.
        return warning(CLAIM, place, "is not bound yet", look)
    if phase != "Bound":
        return failed(CLAIM, place, f"is {phase}", look)
    told = f"bound, {claim['status'].get('capacity', {}).get('storage', '?')}, {', '.join(modes)}"
    if node_count > 1 and not any(mode.endswith("Many") for mode in modes):
        told += f", for {node_count} nodes: pods on different nodes cannot share it"
        return warning(CLAIM, place, told, "name a claim with accessModes: [ReadWriteMany]")
    return ok(CLAIM, place, told)
