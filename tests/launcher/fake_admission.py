"""What an API server refuses before it stores: rules for the calls that the launcher makes.

Each rule names where it is documented. ``CRD_DIR`` names a folder of CRDs, to which custom objects
are held; without it any custom object is let through.
"""

import base64
import functools
import json
from dataclasses import dataclass
from typing import Any

from tests.k8s.crds import crd_schemas

Object = dict[str, Any]
CORE = {
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "services": "Service",
    "pods": "Pod",
    "jobs": "Job",
}
CUSTOM = {
    "pytorchjobs": "PyTorchJob",
    "trainjobs": "TrainJob",
    "trainingruntimes": "TrainingRuntime",
    "jobsets": "JobSet",
}
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An answer that is no object: HTTP's status, Kubernetes' own word, and words for people."""

    status: int
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Write:
    """A request that would change ``held`` (None: there is none of that name) into ``merged``."""

    method: str
    plural: str
    content_type: str
    query: dict[str, str]
    body: Object
    held: Object | None
    merged: Object
    level: str = ""
    """What Pod Security enforces in the namespace; empty for nothing."""
    warn_level: str = ""
    """What it warns of."""
    quotas: tuple[Object, ...] = ()
    pods: int = 0
    """How many are there."""
    runtimes: tuple[str, ...] = ()
    """Names of the TrainingRuntimes that are there."""


def refuse(write: Write) -> Refusal | None:
    """The first rule that the request breaks."""
    rules = (_kind, _strict, _map_size, _job_size, _pod_security, _quota, _runtime, _replicated)
    return next((found for rule in rules if (found := rule(write))), None)


def warnings_of(write: Write) -> tuple[str, ...]:
    """What the server says of an object that it admits, in Warning headers.

    kubernetes.io/docs/concepts/security/pod-security-admission, "Workload resources and Pod
    templates": what would be enforced on their pods is told to whoever makes one.
    """
    if write.plural != "jobs" or write.method != "POST" or not write.warn_level:
        return ()
    found = _violations(write.merged["spec"]["template"]["spec"])
    return (f'would violate PodSecurity "{write.warn_level}:latest": {found}',) if found else ()


def _pod_security(write: Write) -> Refusal | None:
    """.../pod-security-admission: levels are enforced on pods alone."""
    if write.plural != "pods" or not write.level:
        return None
    if not (found := _violations(write.merged["spec"])):
        return None
    name = write.merged["metadata"]["name"]
    why = f'pods "{name}" is forbidden: violates PodSecurity "{write.level}:latest": {found}'
    return Refusal(status=403, reason="Forbidden", message=why)


def _violations(spec: Object) -> str:
    """Of what Pod Security forbids only what this project may ask for."""
    found = ["host namespaces (hostNetwork=true)"] if spec.get("hostNetwork") else []
    for container in spec["containers"]:
        added = ((container.get("securityContext") or {}).get("capabilities") or {}).get("add")
        if added:
            named = ", ".join(f'"{one}"' for one in added)
            told = f'container "{container["name"]}" must not include {named}'
            found.append(f"non-default capabilities ({told} in securityContext.capabilities.add)")
    return ", ".join(found)


def _quota(write: Write) -> Refusal | None:
    """kubernetes.io/docs/concepts/policy/resource-quotas: what would go beyond one is forbidden."""
    if write.plural != "pods" or write.method != "POST":
        return None
    for quota in write.quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        limit = int(hard.get("pods", 1_000_000))
        if write.pods >= limit:
            name = write.merged["metadata"]["name"]
            told = f"requested: pods=1, used: pods={write.pods}, limited: pods={limit}"
            why = f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {told}'
            return Refusal(status=403, reason="Forbidden", message=why)
    return None


def _runtime(write: Write) -> Refusal | None:
    """Kubeflow Trainer v2.3, its webhook of TrainJobs: seen on a cluster, also for a dry run."""
    if write.plural != "trainjobs" or write.method != "POST":
        return None
    reference = write.merged["spec"]["runtimeRef"]
    if reference["name"] in write.runtimes:
        return None
    why = (
        'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
        f"spec.runtimeRef: Invalid value: {json.dumps(reference)}: specified trainingRuntime must "
        "be created before the TrainJob is created"
    )
    return Refusal(status=403, reason="Forbidden", message=why)


def _replicated(write: Write) -> Refusal | None:
    """JobSet v0.12: pods have names of at most 63 characters; seen: 52 of the set are too many, 45
    are not. Kubeflow Trainer v2.4: replicated jobs have names of at most 20."""
    spec = write.merged.get("spec") or {}
    if write.plural == "trainingruntimes":
        names = [one["name"] for one in spec["template"]["spec"]["replicatedJobs"]]
        return (
            _invalid(write, "replicatedJobs: name: Too long") if max(map(len, names)) > 20 else None
        )
    for one in spec["replicatedJobs"] if write.plural == "jobsets" else ():
        last = int(one["template"]["spec"].get("parallelism", 1)) - 1
        pod = (
            f"{write.merged['metadata']['name']}-{one['name']}-{one.get('replicas', 1) - 1}-{last}"
        )
        if len(f"{pod}-abcde") > 63:
            why = f'admission webhook "vjobset.kb.io" denied the request: pod name {pod} too long'
            return Refusal(status=403, reason="Forbidden", message=why)
    return None


def _invalid(write: Write, why: str) -> Refusal:
    kind = (CORE | CUSTOM).get(write.plural, write.plural)
    name = write.merged.get("metadata", {}).get("name", "")
    return Refusal(status=422, reason="Invalid", message=f'{kind} "{name}" is invalid: {why}')


def _kind(write: Write) -> Refusal | None:
    """.../api-concepts: an object that is created or applied says its type, that of the path."""
    wanted = (CORE | CUSTOM).get(write.plural)
    if write.content_type == MERGE or wanted in (None, write.body.get("kind")):
        return None
    message = f"the object provided is unrecognized (must be of type {wanted})"
    return Refusal(status=400, reason="BadRequest", message=message)


def _strict(write: Write) -> Refusal | None:
    """.../api-concepts, "Field validation": with ``Strict`` unknown fields are refused; and every
    object fits its schema (CRDs: "Specifying a structural schema")."""
    problem = _problem(json.dumps(write.merged, sort_keys=True), write.plural)
    if problem is None:
        return None
    if "Additional properties are not allowed" not in problem:
        return _invalid(write, problem)
    if write.query.get("fieldValidation") != "Strict":
        return None
    message = f"strict decoding error: unknown field: {problem}"
    return Refusal(status=400, reason="BadRequest", message=message)


def _map_size(write: Write) -> Refusal | None:
    """kubernetes.io/docs/concepts/configuration/configmap: "cannot exceed 1 MiB", as it is stored,
    so without the base64 of the wire."""
    if write.plural != "configmaps":
        return None
    texts = (write.merged.get("data") or {}).values()
    binaries = (write.merged.get("binaryData") or {}).values()
    size = sum(len(text.encode()) for text in texts)
    size += sum(len(base64.b64decode(data)) for data in binaries)
    if size <= 2**20:
        return None
    return _invalid(write, "[]: Too long: may not be more than 1048576 bytes")


def _job_size(write: Write) -> Refusal | None:
    """.../controllers/job, "Elastic Indexed Jobs": completions changes only together with
    parallelism, to the same number, and only of an Indexed Job."""
    if write.plural != "jobs" or write.held is None:
        return None
    old, new = write.held["spec"], write.merged["spec"]
    if old.get("completions") == new.get("completions"):
        return None
    if new.get("completionMode") == "Indexed" and new["completions"] == new.get("parallelism"):
        return None
    return _invalid(write, "spec.completions: Invalid value: field is immutable")


@functools.lru_cache(maxsize=256)
def _problem(text: str, plural: str) -> str | None:
    """What is wrong with an object by its schema."""
    import jsonschema

    item = _as_written(json.loads(text))
    if plural in CORE:
        import kubernetes_validate

        try:
            kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
        except jsonschema.ValidationError as error:
            return _said(error)
        return None
    schema = crd_schemas().get((item["apiVersion"], item["kind"]))
    errors = schema.iter_errors(item) if schema is not None else iter(())
    found = next(errors, None)
    return None if found is None else _said(found)


def _said(error: Any) -> str:
    where = ".".join(str(part) for part in error.path)
    return f"{where}: {error.message[:300]}"


def _as_written(item: Object) -> Object:
    """Without what the server adds: schemas of one version need not know another's."""
    metadata = {k: v for k, v in item["metadata"].items() if k not in ("managedFields",)}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}
