"""A PyTorchJob as the training operator (v1.9) understands it: defaults, names, environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from launcher.contract.node_plan import Env
from launcher.manifests.source import Value, object_name

MASTER = "Master"
WORKER = "Worker"
CONTAINER = "pytorch"
PORT_NAME = "pytorchjob-port"
PORT = 23456
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NPROC_WORDS = ("auto", "cpu", "gpu")
"""Values of ``nprocPerNode`` that torchrun resolves in the pod."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One entry of ``pytorchReplicaSpecs``, with the operator's defaults."""

    kind: str
    spec: Value

    @property
    def pods(self) -> int:
        """How many pods it makes."""
        count = self.spec["replicas"].number
        return 1 if count is None else count

    @property
    def restart_policy(self) -> str:
        return self.spec["restartPolicy"].text or "OnFailure"

    @property
    def pod(self) -> Value:
        """The pod's ``spec``."""
        return self.spec["template"]["spec"]

    @property
    def container(self) -> Value | None:
        """The container that the job is about."""
        named = [c for c in self.pod["containers"] if c["name"].text == CONTAINER]
        return named[0] if named else None


@dataclass(frozen=True, kw_only=True)
class PyTorchJob:
    """A job's manifest, read by the operator's rules."""

    item: Value

    @property
    def name(self) -> str:
        return object_name(self.item)

    @property
    def namespace(self) -> str:
        return self.item["metadata"]["namespace"].text or "default"

    @property
    def spec(self) -> Value:
        return self.item["spec"]

    @property
    def elastic(self) -> Value:
        """``elasticPolicy``; absent for a job that is not elastic."""
        return self.spec["elasticPolicy"]

    @property
    def run_policy(self) -> Value:
        return self.spec["runPolicy"]

    @property
    def clean_pod_policy(self) -> str:
        return self.run_policy["cleanPodPolicy"].text or "None"

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        """Master first, whatever the order in the manifest."""
        specs = self.spec["pytorchReplicaSpecs"]
        return tuple(Replica(kind=k, spec=specs[k]) for k in (MASTER, WORKER) if specs[k])

    @cached_property
    def master(self) -> Replica | None:
        return next((r for r in self.replicas if r.kind == MASTER), None)

    @cached_property
    def worker(self) -> Replica | None:
        return next((r for r in self.replicas if r.kind == WORKER), None)

    @property
    def pods(self) -> int:
        return sum(replica.pods for replica in self.replicas)

    @property
    def nproc_per_node(self) -> str:
        """Verbatim, as torchrun gets it."""
        return self.spec["nprocPerNode"].text or self.elastic["nProcPerNode"].text or "auto"

    @property
    def bounds(self) -> tuple[int, int]:
        """MIN and MAX of an elastic job, each the other's default."""
        low, high = self.elastic["minReplicas"].number, self.elastic["maxReplicas"].number
        workers = self.worker.pods if self.worker else 0
        return (
            next((n for n in (low, high) if n is not None), workers),
            next((n for n in (high, low) if n is not None), workers),
        )

    @property
    def master_port(self) -> int:
        container = self.master.container if self.master else None
        for port in container["ports"] if container else ():
            if port["name"].text == PORT_NAME:
                return port["containerPort"].number or PORT
        return PORT

    def pod_name(self, replica: Replica, index: int) -> str:
        """A pod's name, and that of the service that leads to it."""
        return f"{self.name}-{replica.kind.lower()}-{index}"


def operator_env(job: PyTorchJob, replica: Replica, index: int) -> Env:
    """The variables that the operator appends to every container's own, in its order."""
    env = {"PYTHONUNBUFFERED": "1"}
    if job.master is not None:
        env |= _master_env(job, replica, index)
    env["PET_NPROC_PER_NODE"] = job.nproc_per_node
    if job.elastic:
        env |= _elastic_env(job)
    else:
        env["PET_NNODES"] = str(job.pods)
    return tuple(env.items())


def _master_env(job: PyTorchJob, replica: Replica, index: int) -> dict[str, str]:
    address, port = f"{job.name}-master-0", str(job.master_port)
    rank = str(index if replica.kind == MASTER else index + 1)
    per_pod = int(job.nproc_per_node) if job.nproc_per_node.isdigit() else 1
    return {
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "PET_MASTER_ADDR": address,
        "WORLD_SIZE": str(job.pods * per_pod),
        "RANK": rank,
        "PET_NODE_RANK": rank,
    }


def _elastic_env(job: PyTorchJob) -> dict[str, str]:
    policy, (low, high) = job.elastic, job.bounds
    host = policy["rdzvHost"].text or f"{job.name}-worker-0"
    conf = ",".join(f"{pair['key'].text}={pair['value'].text}" for pair in policy["rdzvConf"])
    env = {
        "PET_NNODES": f"{low}:{high}",
        "PET_RDZV_ENDPOINT": f"{host}:{policy['rdzvPort'].text or PORT}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"].text or "c10d",
        "PET_RDZV_ID": policy["rdzvId"].text,
        "PET_RDZV_CONF": conf,
        "PET_MAX_RESTARTS": policy["maxRestarts"].text,
    }
    env = {name: value for name, value in env.items() if value}
    return env | ({"PET_STANDALONE": ""} if policy["standalone"].data is True else {})
