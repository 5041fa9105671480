"""The fields of the operators' objects: an API server drops misspelt ones without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.contract.did_you_mean import closest
from launcher.manifests.checks.rules import Breaches, Rule, hit
from launcher.manifests.source import Value

Fields = Mapping[str, "Fields"]


def _open(names: str, **described: Fields) -> Fields:
    """Fields by name; what lies below those in ``names`` is described elsewhere."""
    return {name: {} for name in names.split()} | described


_REPLICA = _open("replicas restartPolicy template")
FIELDS: Fields = {
    "PyTorchJob": _open(
        "nprocPerNode",
        elasticPolicy=_open(
            "maxReplicas maxRestarts metrics minReplicas nProcPerNode rdzvBackend rdzvConf "
            "rdzvHost rdzvId rdzvPort standalone"
        ),
        pytorchReplicaSpecs={"Master": _REPLICA, "Worker": _REPLICA},
        runPolicy=_open(
            "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy suspend "
            "ttlSecondsAfterFinished",
            schedulingPolicy=_open(
                "minAvailable minResources priorityClass queue scheduleTimeoutSeconds"
            ),
        ),
    ),
    "TrainJob": _open(
        "activeDeadlineSeconds managedBy suspend runtimePatches",
        initializer=_open("dataset model"),
        runtimeRef=_open("apiGroup kind name"),
        trainer=_open("args command env image numNodes numProcPerNode resourcesPerNode"),
    ),
    "JobSet": _open(
        "coordinator managedBy startupPolicy successPolicy replicatedJobs suspend "
        "ttlSecondsAfterFinished volumeClaimPolicies",
        failurePolicy=_open("maxRestarts restartStrategy rules"),
        network=_open("enableDNSHostnames publishNotReadyAddresses subdomain"),
    ),
}
"""The fields of ``spec``, by kind: training operator v1.9, trainer v2.3, JobSet v0.12."""


def check_fields(item: Value) -> Breaches:
    """The ``spec`` of an object of one of the kinds in ``FIELDS``."""
    known = FIELDS[item["kind"].text]
    yield from _check(item["spec"], known, dict(_places(known, "spec")))


def _check(value: Value, known: Fields, places: Mapping[str, str]) -> Breaches:
    for key, given in value.items():
        if below := known.get(key):
            yield from _check(given, below, places)
        elif key not in known and "Master" not in known:  # a role has a rule of its own
            close = closest(key, places)
            fix = f"{places[close]}.{close}" if close else "remove it"
            yield hit(Rule.UNKNOWN_FIELD, given, f"{value.name} has no {key}", fix)


def _places(known: Fields, place: str) -> Iterator[tuple[str, str]]:
    for key, below in known.items():
        yield key, place
        yield from _places(below, f"{place}.{key}")
