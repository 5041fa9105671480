"""Rules for TrainJobs and their runtimes. Source: Kubeflow Trainer at v2.3."""

from __future__ import annotations

from launcher.manifests.checks.fields import check_fields
from launcher.manifests.checks.gangs import check_length
from launcher.manifests.checks.pods import check_env, check_pod
from launcher.manifests.checks.rules import Breaches, Rule, hit
from launcher.manifests.source import Together, Value, object_name

NODE = "node"
"""The name of the replicated job, and of its container, that get the trainer's variables."""
RESERVED = (
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"),
    *("PET_MASTER_ADDR", "PET_MASTER_PORT"),
)


def check_trainjob(item: Value, together: Together) -> Breaches:
    """One TrainJob; its runtime is an object of its own, checked if it is among the files."""
    yield from check_fields(item)
    spec = item["spec"]
    trainer = spec["trainer"]
    nodes = trainer["numNodes"].number or 1
    yield from check_length(item, f"{object_name(item)}-{NODE}-0-{nodes - 1}", 6)
    if not spec["runtimeRef"]["name"].text:
        fix = "runtimeRef: {name: torch-distributed}"
        yield hit(Rule.TRAINJOB_RUNTIME, spec["runtimeRef"], "no runtimeRef", fix)
    if not trainer:
        what, fix = "no spec.trainer", "trainer: {numNodes: ...}"
        yield hit(Rule.TRAINJOB_NO_TRAINER, trainer, what, fix)
    for variable in trainer["env"]:
        if variable["name"].text in RESERVED:
            what = f"{variable['name'].text} is set"
            fix = "remove it; write numNodes and numProcPerNode"
            yield hit(Rule.TRAINJOB_RESERVED_ENV, variable, what, fix)
    yield from check_env(trainer)


def check_runtime(item: Value, together: Together) -> Breaches:
    """A TrainingRuntime or ClusterTrainingRuntime with a torch policy."""
    torch = item["spec"]["mlPolicy"]["torch"]
    if not torch:
        return
    if torch["elasticPolicy"]:
        place, fix = torch["elasticPolicy"], "remove it; elastic jobs are PyTorchJobs"
        yield hit(Rule.TRAINJOB_ELASTIC, place, "an elasticPolicy in a runtime", fix)
    jobs = item["spec"]["template"]["spec"]["replicatedJobs"]
    pods = {job["name"].text: job["template"]["spec"]["template"]["spec"] for job in jobs}
    containers = [c["name"].text for c in pods[NODE]["containers"]] if NODE in pods else []
    if NODE not in containers:
        found = ", ".join(f"{job}: {_names(pod)}" for job, pod in pods.items()) or "nothing"
        fix = "a replicated job called node with a container called node"
        yield hit(Rule.TRAINJOB_CONTAINER, jobs, f"found {found}", fix)
    for pod in pods.values():
        yield from check_pod(pod)


def _names(pod: Value) -> str:
    return " ".join(container["name"].text for container in pod["containers"])
