"""Imports PyTorchJobs and TrainJobs: which field becomes which key of a job file. Pure."""

from __future__ import annotations

import re

from launcher.manifests.imports.command_line import LineReader
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.programs import NOWHERE, RANK
from launcher.manifests.pytorchjob import PyTorchJob, operator_env
from launcher.manifests.source import SHM, Value, count_gpus, object_name, render_path, shm_volume
from launcher.yamlfile.problem import KeyPath

KINDS = {"PyTorchJob": "kubeflow.org/v1", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
"""The kinds that are read, each with its version."""
POD_KEYS = {
    "serviceAccountName": "service_account",
    "priorityClassName": "priority_class",
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "hostNetwork": "host_network",
}
"""Fields of a pod that a job file has under ``kubernetes``."""
DECIDED = {
    "restartPolicy": "the launcher writes what fits max_restarts",
    "rdzvBackend": RANK,
    "rdzvId": RANK,
    "cleanPodPolicy": "the launcher removes what a run leaves",
}


class _Import:
    """The import of one object; keeps which of its places were taken, to name the others."""

    def __init__(self, draft: Draft, item: Value) -> None:
        self.draft, self.item = draft, item
        self.taken: set[KeyPath] = {("apiVersion",), ("kind",), ("metadata",), ("status",)}

    def mark_taken(self, value: Value) -> Value:
        self.taken.add(value.path)
        return value

    def put(self, key: str, value: Value) -> None:
        if self.mark_taken(value):
            self.draft.put(key, value.data)

    def name_the_rest(self) -> None:
        """Names every place that is written and was not taken, by its topmost key."""
        for path in self.item.source.entries:
            above = {path[:n] for n in range(len(path) + 1)}
            is_partly = any(taken[: len(path)] == path for taken in self.taken)
            if not (is_partly or above & self.taken):
                self.taken.add(path)
                self.draft.leave(render_path(path), DECIDED.get(str(path[-1]), NOWHERE))


def import_object(item: Value, draft: Draft) -> None:
    """Reads a PyTorchJob or a TrainJob. Raises ``InputError`` where it starts no training."""
    work = _Import(draft, item)
    draft.put("name", object_name(item))
    draft.put("kubernetes.namespace", item["metadata"]["namespace"].text)
    (_trainjob if item["kind"].text == "TrainJob" else _pytorchjob)(work)
    work.name_the_rest()


def _trainjob(work: _Import) -> None:
    trainer = work.item["spec"]["trainer"]
    draft = work.draft
    draft.put("kubernetes.kind", "trainjob")
    work.put("nnodes", trainer["numNodes"])
    work.put("nproc_per_node", trainer["numProcPerNode"])
    work.put("image", trainer["image"])
    _environment(work, trainer)
    work.mark_taken(trainer["resourcesPerNode"])
    _resources(work, trainer["resourcesPerNode"]["limits"])
    _command(work, trainer)


def _pytorchjob(work: _Import) -> None:
    job, draft = PyTorchJob(work.item), work.draft
    draft.put("kubernetes.kind", "pytorchjob")
    elastic = work.mark_taken(job.spec["elasticPolicy"]) if job.elastic else None
    low, high = job.bounds if elastic else (job.pods, job.pods)
    draft.put("nnodes", f"{low}:{high}" if low < high else low)
    if elastic:
        work.put("max_restarts", elastic["maxRestarts"])
    else:
        draft.put("rdzv.backend", "static")
    replica = (job.worker or job.master) if elastic else (job.master or job.worker)
    if replica is None or replica.container is None:
        return
    for other in job.replicas:
        work.mark_taken(other.spec["replicas"])
        if other is not replica:
            work.mark_taken(other.spec)  # the same pod, except for its rank
    container, pod = replica.container, replica.pod
    work.mark_taken(container["name"])
    work.put("image", container["image"])
    work.put("workdir", container["workingDir"])
    work.put("kubernetes.image_pull_policy", container["imagePullPolicy"])
    for name, key in POD_KEYS.items():
        work.put(f"kubernetes.{key}", pod[name])
    work.mark_taken(pod["imagePullSecrets"])
    for secret in pod["imagePullSecrets"]:
        draft.add("kubernetes.image_pull_secrets", secret["name"].text)
    _environment(work, container)
    _resources(work, container["resources"]["limits"])
    work.mark_taken(container["resources"]["requests"])
    draft.put("resources.gpus", count_gpus(container))
    _volumes(work, pod, container)
    _command(work, container, dict(operator_env(job, replica)))
    nproc = work.mark_taken(job.spec["nprocPerNode"]).text
    if "nproc_per_node" not in draft.keys:
        # Without torchrun each pod is one process of the world that the operator's variables make.
        draft.put("nproc_per_node", int(nproc) if nproc.isdigit() else nproc or 1)


def _environment(work: _Import, container: Value) -> None:
    for entry in work.mark_taken(container["env"]):
        name, reference = entry["name"].text, entry["valueFrom"]["secretKeyRef"]
        if reference:
            work.draft.add("secrets", name)
            work.draft.put("kubernetes.secret", reference["name"].text)
            if reference["key"].text != name:
                why = f"the Secret {reference['name'].text} needs the key {name}"
                work.draft.leave(f"env {name} of key {reference['key'].text}", why)
        elif entry["valueFrom"]:
            work.draft.leave(f"env {name}", "valueFrom: only keys of a Secret have a place")
        else:
            work.draft.set_env(name, entry["value"].text)


def _resources(work: _Import, limits: Value) -> None:
    work.mark_taken(limits)
    for name, value in limits.items():
        if name.endswith("/gpu"):
            work.draft.put("resources.gpus", value.number)
        elif name in ("cpu", "memory"):
            key, amount = ("cpus", value.quantity) if name == "cpu" else ("memory", value.text)
            work.draft.put(f"resources.{key}", amount)
        else:
            work.draft.leave(f"{name}: {value.text}", "resources.rdma and kubernetes.rdma_resource")


def _volumes(work: _Import, pod: Value, container: Value) -> None:
    if (memory := shm_volume(pod, container)) is not None:
        work.draft.put("resources.shm", work.mark_taken(memory)["emptyDir"]["sizeLimit"].text)
    claims = {
        volume["name"].text: volume["persistentVolumeClaim"]["claimName"].text
        for volume in pod["volumes"]
        if work.mark_taken(volume)
    }
    for mount in work.mark_taken(container["volumeMounts"]):
        name, target = mount["name"].text, mount["mountPath"].text
        if claim := claims.get(name):
            path = "/".join(filter(None, ("pvc", claim, mount["subPath"].text)))
            only_read = ":ro" if mount["readOnly"].data is True else ""
            work.draft.add("kubernetes.volumes", f"{path}:{target}{only_read}")
        elif target != SHM:
            why = "only claims have a place: pvc/CLAIM:TARGET"
            work.draft.leave(f"volume {name} at {target}", why)


def _command(work: _Import, container: Value, known: dict[str, str] | None = None) -> None:
    written = [*work.mark_taken(container["command"]), *work.mark_taken(container["args"])]
    # Kubernetes writes $(NAME) for ${NAME}.
    words = [re.sub(r"\$\((\w+)\)", r"${\1}", value.text) for value in written]
    if words:
        LineReader(work.draft, known or {}).read_all(words)
    else:
        work.draft.leave("command", "the image's own starts the training: write it as command")
