"""Fields that the operators' objects have: what is misspelt or misplaced is dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from launcher.manifests.checks.rules import Hit, Rule, hit
from launcher.manifests.source import Value

OPEN: Mapping[str, object] = {}
"""Whatever lies below is described elsewhere."""
RUN_POLICY = {
    **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy"), OPEN),
    **dict.fromkeys(("managedBy", "suspend", "ttlSecondsAfterFinished"), OPEN),
    "schedulingPolicy": dict.fromkeys(
        ("minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds"), OPEN
    ),
}
ELASTIC_POLICY = {
    **dict.fromkeys(("maxReplicas", "maxRestarts", "metrics", "minReplicas"), OPEN),
    **dict.fromkeys(("nProcPerNode", "rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId"), OPEN),
    **dict.fromkeys(("rdzvPort", "standalone"), OPEN),
}
REPLICA = {**dict.fromkeys(("replicas", "restartPolicy"), OPEN), "template": OPEN}
FIELDS: Mapping[str, Mapping[str, object]] = {
    "PyTorchJob": {
        "elasticPolicy": ELASTIC_POLICY,
        "nprocPerNode": OPEN,
        "pytorchReplicaSpecs": {"Master": REPLICA, "Worker": REPLICA},
        "runPolicy": RUN_POLICY,
    },
    "TrainJob": {
        **dict.fromkeys(("activeDeadlineSeconds", "managedBy", "suspend", "runtimePatches"), OPEN),
        "initializer": {"dataset": OPEN, "model": OPEN},
        "runtimeRef": dict.fromkeys(("apiGroup", "kind", "name"), OPEN),
        "trainer": {
            **dict.fromkeys(("args", "command", "env", "image"), OPEN),
            **dict.fromkeys(("numNodes", "numProcPerNode", "resourcesPerNode"), OPEN),
        },
    },
    "JobSet": {
        **dict.fromkeys(("coordinator", "managedBy", "startupPolicy", "successPolicy"), OPEN),
        **dict.fromkeys(("suspend", "ttlSecondsAfterFinished", "volumeClaimPolicies"), OPEN),
        "failurePolicy": dict.fromkeys(("maxRestarts", "restartStrategy", "rules"), OPEN),
        "network": dict.fromkeys(
            ("enableDNSHostnames", "publishNotReadyAddresses", "subdomain"), OPEN
        ),
        "replicatedJobs": OPEN,
    },
}
"""Of ``spec``, by kind: training operator v1.9, trainer v2.3, JobSet v0.12."""


def check_fields(item: Value) -> Iterator[Hit]:
    """The ``spec`` of an object of one of the kinds in ``FIELDS``."""
    known = FIELDS[item["kind"].text]
    yield from _check(item["spec"], known, dict(_places(known, "spec")))


def _check(value: Value, known: Mapping[str, object], places: Mapping[str, str]) -> Iterator[Hit]:
    roles = "Master" in known
    for key in value.keys():  # noqa: SIM118 (a Value, which iterates as a list)
        below = known.get(key)
        if isinstance(below, Mapping):
            yield from _check(value[key], below, places) if below else ()
        elif not roles:
            yield hit(
                Rule.UNKNOWN_FIELD, value[key], f"{value.name} has no {key}", _fix(key, places)
            )


def _fix(key: str, places: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(key, places, n=1)
    return f"{places[close[0]]}.{close[0]}" if close else "remove it"


def _places(known: Mapping[str, object], place: str) -> Iterator[tuple[str, str]]:
    for key, below in known.items():
        yield key, place
        if isinstance(below, Mapping):
            yield from _places(below, f"{place}.{key}")
