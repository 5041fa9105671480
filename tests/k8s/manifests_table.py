"""Jobs of every kind, from the plainest to one that asks for everything, and their objects."""

import re
from pathlib import Path
from typing import Any

from launcher.code.place import CodePlace
from launcher.code.record import CodeRecord, PackedCode
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render.manifest import RenderedManifest, render_manifest

Fields = dict[str, Any]
DURABLE = {"checkpoint": "pvc/fabric-train"}
GPUS: Fields = {
    "image": "ghcr.io/me/train:1.4",
    "nproc_per_node": "gpu",
    "resources": {"cpus": 64, "memory": "512Gi", "shm": "64Gi", "gpus": 8, "rdma": 4},
    "secrets": ["WANDB_API_KEY", "HF_TOKEN"],
    "env": {"NCCL_DEBUG": "INFO"},
    "mounts": ["./data:/data:ro"],
    "workdir": "/workspace",
    "stop_grace_s": 120,
    "agent": {"health": {"port": 9500}},
}
PLACED: Fields = {
    **DURABLE,
    "namespace": "training",
    "run": "pvc/logs/digits",
    "volumes": ["pvc/datasets/imagenet:/data:ro", "pvc/fabric-train:/all"],
    "secret": "wandb",
    "image_pull_secrets": ["registry"],
    "image_pull_policy": "Always",
    "service_account": "trainer",
    "run_as_user": 2000,
    "priority_class": "high",
    "node_selector": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "training"}, {}],
    "host_network": True,
    "rdma_resource": "rdma/hca_shared_devices_a",
}
PLAIN: Fields = {"nproc_per_node": 1, "kubernetes": {}}
ELASTIC: Fields = {
    "nnodes": "2:4",
    "nproc_per_node": 2,
    "max_restarts": 3,
    "start": "fork",
    "resources": {"cpus": 1.5, "memory": "4Gi"},
    "kubernetes": DURABLE,
}
FIXED: Fields = {**ELASTIC, "nnodes": 3}
EPHEMERAL: Fields = {**FIXED, "kubernetes": {"checkpoint": "ephemeral", "whole_node": True}}
WITH_CODE: Fields = {**FIXED, "takes_code": True}
LONG: Fields = {**FIXED, "name": "n" * 40, "nnodes": 1000}


def gang(fields: Fields, scheduler: str) -> Fields:
    more = {"gang": scheduler, "queue": "team-a"}
    return {**fields, "kubernetes": {**fields["kubernetes"], **more}}


OF_ANY_KIND: dict[str, Fields] = {
    "plain": PLAIN,
    "fixed": FIXED,
    "ephemeral": EPHEMERAL,
    "long": LONG,
    "code": WITH_CODE,
    "everything": {**FIXED, **GPUS, "kubernetes": PLACED},
    **{name: gang(FIXED, name) for name in ("volcano", "kueue")},
}
OF_ELASTIC_KINDS: dict[str, Fields] = {
    "elastic": ELASTIC,
    **{f"elastic-{name}": gang(ELASTIC, name) for name in ("volcano", "kueue")},
}
STATIC: dict[str, Fields] = {
    "static": {**FIXED, "rdzv": {"backend": "static"}},
    "static-alone": {**FIXED, "nnodes": 1, "rdzv": {"backend": "static"}},
    "static-volcano": {**gang(FIXED, "volcano"), "rdzv": {"backend": "static"}},
}
CODE = PackedCode(
    record=CodeRecord(
        root="/home/me/project",
        inner="sub folder/ä",
        start=("-m", "train"),
        hash="c0de" * 16,
        files=2,
        bytes=123_456,
        commit="0123456789abcdef",
        is_dirty=True,
    ),
    data=b"in place of an archive",
    names=frozenset({"train.py", "sub folder/ä/helper.py"}),
)
"""What jobs with ``takes_code`` take along."""
KINDS = ("pytorchjob", "trainjob", "jobset", "job")
TABLE: dict[str, Fields] = {
    f"{kind}-{name}": {**fields, "kubernetes": {**fields["kubernetes"], "kind": kind}}
    for kind in KINDS
    for name, fields in (
        OF_ANY_KIND
        | (OF_ELASTIC_KINDS if kind in ("pytorchjob", "job") else {})
        | (STATIC if kind == "pytorchjob" else {})
    ).items()
}
"""Every job that a renderer treats in its own way, by a name that begins with its kind."""


def plan_of(*, takes_code: bool = False, **fields: Any) -> LaunchPlan:
    """A job's plan, with a fixed run id."""
    job = JobSpec.model_validate({"name": "digits", "command": ["-m", "train"], **fields})
    code = CODE.record
    place = CodePlace(root=Path(code.root), inner=code.inner, command=job.command)
    if "code" in fields:
        place = CodePlace(inner=job.workdir or "", command=job.command)
    return plan_kubernetes(
        job,
        run_id=job.name,
        run_root="/home/me/runs",
        cwd="/home/me",
        place=place if takes_code or "code" in fields else None,
        code=CODE if takes_code else None,
    )


def manifest_of(**fields: Any) -> RenderedManifest:
    return render_manifest(plan_of(**fields), code=CODE if fields.get("takes_code") else None)


def main_object(manifest: RenderedManifest) -> Fields:
    """The job itself, which comes last."""
    return manifest.objects[-1]


def pod_specs(value: Any) -> list[Fields]:
    """All pods that are described anywhere inside."""
    if isinstance(value, list):
        return [pod for item in value for pod in pod_specs(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [pod for item in value.values() for pod in pod_specs(item)]


def without_archive(text: str) -> str:
    """The manifest without what changes with every line of the agent."""
    text = re.sub(r"(agent\.pyz: )\S{100,}", r"\1...", text)
    text = text.replace(read_agent_version(), "AGENT")
    return re.sub(r"-plan-[0-9a-f]{8}\b", "-plan-HASH", text)
