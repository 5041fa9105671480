"""Turns a cluster's objects into findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.doctor.references import PULL_SECRET, Object, Reference, parse_amount, sum_resources
from launcher.targets.kubernetes.kubeconfig import kubectl

PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
KEEPS_AWAY = ("NoSchedule", "NoExecute")
BYTES = ("memory", "ephemeral-storage")
UNITS = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def judge_rights(
    denied: Mapping[str, Sequence[str]], allowed: Sequence[str], namespace: str
) -> Iterator[Finding]:
    """``denied`` are verbs by resource, as ``kubectl`` writes one; ``allowed`` resources."""
    for resource, verbs in denied.items():
        role = f"launcher-{resource.partition('.')[0].replace('/', '-')}"
        fix = (
            f"an admin of the namespace: {kubectl()} create role {role} -n {namespace} "
            f"--verb={','.join(verbs)} --resource={resource} && "
            f"{kubectl()} create rolebinding {role} -n {namespace} --role={role} --user=YOU"
        )
        yield failed("rights", resource, f"you may not {', '.join(verbs)} it", fix)
    if allowed:
        yield ok("rights", f"namespace {namespace}", ", ".join(allowed))


# -- what the job names ---------------------------------------------------------------------------


def judge_reference(
    reference: Reference, found: Object | None, namespace: str, node_count: int
) -> Finding:
    """An object that the job names; ``found`` None where it is not there."""
    place, flag = f"{reference.kind} {reference.name}", f"{reference.name} -n {namespace}"
    check = reference.use or reference.kind
    if found is None:
        return failed(check, place, "is not there", _fix(reference, flag))
    if reference.kind == "PersistentVolumeClaim":
        return _judge_claim(found, place, flag, node_count)
    data = {**(found.get("data") or {}), **(found.get("binaryData") or {})}
    missing = [key for key in reference.keys if key not in data]
    if missing:
        patch = ", ".join(f'"{key}": "..."' for key in missing)
        field = "stringData" if reference.kind == "Secret" else "data"
        fix = f"{kubectl()} patch {reference.kind.lower()} {flag} -p '{{\"{field}\": {{{patch}}}}}'"
        return failed(check, place, f"has no {', '.join(missing)}", fix)
    if reference.use == PULL_SECRET and found.get("type") not in PULL_TYPES:
        told = f"is of type {found.get('type')}, with which no image is pulled"
        return failed(check, place, told, _fix(reference, flag))
    return ok(check, place, "is there" + (f", with {', '.join(reference.keys)}" * bool(data)))


def _fix(reference: Reference, flag: str) -> str:
    keys = "".join(f" --from-literal={key}=..." for key in reference.keys)
    fixes = {
        PULL_SECRET: (
            f"{kubectl()} create secret docker-registry {flag} --docker-server=SERVER "
            "--docker-username=NAME --docker-password=PASSWORD"
        ),
        "Secret": f"{kubectl()} create secret generic {flag}{keys}",
        "ConfigMap": f"{kubectl()} create configmap {flag} --from-file=FILE",
        "ServiceAccount": f"{kubectl()} create serviceaccount {flag}",
        "PersistentVolumeClaim": f"{kubectl()} apply -f k8s/base/storage.yaml, as {flag}",
        "PriorityClass": f"{kubectl()} get priorityclasses; kubernetes.priority_class of the job",
    }
    return fixes[reference.use or reference.kind]


def _judge_claim(claim: Object, place: str, flag: str, node_count: int) -> Finding:
    check, phase = "PersistentVolumeClaim", claim.get("status", {}).get("phase", "Pending")
    modes = claim["spec"].get("accessModes") or []
    look = f"{kubectl()} describe pvc {flag}"
    if phase == "Pending":
        # This is right if the storage class waits for the first pod.
        return warning(check, place, "is not bound yet", look)
    if phase != "Bound":
        return failed(check, place, f"is {phase}", look)
    told = f"bound, {claim['status'].get('capacity', {}).get('storage', '?')}, {', '.join(modes)}"
    if node_count > 1 and not any(mode.endswith("Many") for mode in modes):
        told += f", for {node_count} nodes: pods on different nodes cannot share it"
        return warning(check, place, told, "name a claim with accessModes: [ReadWriteMany]")
    return ok(check, place, told)


# -- room -----------------------------------------------------------------------------------------


def judge_nodes(nodes: Sequence[Object], template: Object, least: int, most: int) -> Finding:
    """Whether nodes would take the job's pods if they were empty; ``least`` and ``most`` pods."""
    wanted, spec = sum_resources(template, "requests"), template["spec"]
    why: dict[str, int] = {}
    room = with_room = 0
    for node in nodes:
        reason = _why_not(node, spec, wanted)
        fits = 0 if reason else _fits(node, wanted, whole="affinity" in spec)
        if reason:
            why[reason] = why.get(reason, 0) + 1
        room, with_room = room + fits, with_room + bool(fits)
    each = (f"{name} {render_amount(name, amount)}" for name, amount in wanted.items())
    asked = ", ".join(each) or "nothing special"
    told = f"{with_room} of {len(nodes)} nodes have room for pods with {asked}"
    told += "".join(f"; {count} {reason}" for reason, count in why.items())
    fix = f"{kubectl()} describe nodes; lower resources: of the job, or set kubernetes.tolerations"
    if room < least:
        return failed("nodes", "cluster", f"{told}; the job has {least} pods", fix)
    if room < most:
        return warning("nodes", "cluster", f"{told}; the job grows to {most} pods", fix)
    return ok("nodes", "cluster", told)


def render_amount(name: str, amount: float) -> str:
    """An amount of a resource as people write it: ``1.5``, ``8Gi``."""
    if name in BYTES:
        for unit, size in UNITS:
            if amount >= size:
                return f"{amount / size:.4g}{unit}"
    return f"{amount:.15g}"


def _why_not(node: Object, spec: Object, wanted: Mapping[str, float]) -> str:
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return "without the labels of node_selector"
    if node.get("spec", {}).get("unschedulable"):
        return "cordoned"
    for taint in node.get("spec", {}).get("taints") or []:
        if taint["effect"] in KEEPS_AWAY and not _tolerates(spec, taint):
            return f"tainted {taint['key']}"
    allocatable = node["status"].get("allocatable") or {}
    for name, amount in wanted.items():
        if parse_amount(allocatable.get(name, 0)) < amount:
            return f"with less {name}"
    return ""


def _tolerates(spec: Object, taint: Object) -> bool:
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value") == taint.get("value"))
        for one in spec.get("tolerations") or []
    )


def _fits(node: Object, wanted: Mapping[str, float], *, whole: bool) -> int:
    allocatable = node["status"].get("allocatable") or {}
    counts = [int(parse_amount(allocatable.get("pods", 110)))]
    counts += [
        int(parse_amount(allocatable[name]) // amount) for name, amount in wanted.items() if amount
    ]
    return min(1, *counts) if whole else min(counts)
