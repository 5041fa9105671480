"""A PyTorchJob as the training operator (v1.9) understands it: defaults, names, environment."""

from __future__ import annotations

import re

from launcher.contract.node_plan import Env
from launcher.manifests.source import Value, object_name

MASTER = "Master"
WORKER = "Worker"
CONTAINER = "pytorch"
PORT = 23456
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NUMBER = re.compile(r"[+-]?[0-9]+")
"""What Go's strconv.Atoi takes."""
NPROC_WORDS = ("auto", "cpu", "gpu")
"""Values of ``nprocPerNode`` that torchrun resolves in the pod."""


class Replica:
    """One entry of ``pytorchReplicaSpecs``, with the operator's defaults.

    ``pods`` is how many it makes, ``pod`` the pod's ``spec``, and ``container`` the pod's container
    called ``pytorch``, or None.
    """

    def __init__(self, kind: str, spec: Value) -> None:
        self.kind, self.spec = kind, spec
        count = spec["replicas"].number
        self.pods = 1 if count is None else count
        self.restart_policy = spec["restartPolicy"].text or "OnFailure"
        self.pod = spec["template"]["spec"]
        named = (c for c in self.pod["containers"] if c["name"].text == CONTAINER)
        self.container = next(named, None)


class PyTorchJob:
    """A job's manifest, read by the operator's rules.

    ``replicas`` has the Master first, whatever the order in the manifest. ``elastic`` is
    ``elasticPolicy``, absent for a job that is not elastic. ``bounds`` are its MIN and MAX, each
    the other's default. ``nproc_per_node`` is verbatim, as torchrun gets it. ``counted`` is what
    the operator multiplies into WORLD_SIZE.
    """

    def __init__(self, item: Value) -> None:
        self.name = object_name(item)
        self.spec = item["spec"]
        self.elastic, self.run_policy = self.spec["elasticPolicy"], self.spec["runPolicy"]
        self.clean_pod_policy = self.run_policy["cleanPodPolicy"].text or "None"
        specs = self.spec["pytorchReplicaSpecs"]
        replicas = {kind: Replica(kind, specs[kind]) for kind in (MASTER, WORKER) if specs[kind]}
        self.replicas = tuple(replicas.values())
        self.master, self.worker = replicas.get(MASTER), replicas.get(WORKER)
        self.pods = sum(replica.pods for replica in self.replicas)
        of_spec, of_policy = self.spec["nprocPerNode"], self.elastic["nProcPerNode"]
        # An empty text stays empty.
        self.nproc_per_node = of_spec.text if of_spec else of_policy.text or "auto"
        self.counted = int(of_spec.text) if NUMBER.fullmatch(of_spec.text) else 1
        low, high = self.elastic["minReplicas"].number, self.elastic["maxReplicas"].number
        either = next((n for n in (low, high) if n is not None), None)
        workers = self.worker.pods if self.worker else 0
        default = workers if either is None else either
        self.bounds = (default if low is None else low, default if high is None else high)

    def port_of(self, replica: Replica | None) -> int:
        """The port at which the job's processes meet, by a replica's container."""
        container = replica.container if replica else None
        for port in container["ports"] if container else ():
            if port["name"].text == "pytorchjob-port":
                return port["containerPort"].number or PORT
        return PORT


def operator_env(job: PyTorchJob, replica: Replica) -> Env:
    """The variables that the operator appends to those of a replica's first pod, in its order."""
    env = {"PYTHONUNBUFFERED": "1"}
    if job.master is not None:
        env |= _master_env(job, replica)
    env["PET_NPROC_PER_NODE"] = job.nproc_per_node
    env |= _elastic_env(job) if job.elastic else {"PET_NNODES": str(job.pods)}
    return tuple(env.items())


def _master_env(job: PyTorchJob, replica: Replica) -> dict[str, str]:
    address, port = f"{job.name}-master-0", str(job.port_of(job.master))
    rank = "0" if replica.kind == MASTER else "1"
    return {
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "PET_MASTER_ADDR": address,
        "WORLD_SIZE": str(job.pods * job.counted),
        "RANK": rank,
        "PET_NODE_RANK": rank,
    }


def _elastic_env(job: PyTorchJob) -> dict[str, str]:
    policy, (low, high) = job.elastic, job.bounds
    host = policy["rdzvHost"].text or f"{job.name}-worker-0"
    port = job.port_of(job.worker)
    env = {
        "PET_NNODES": f"{low}:{high}",
        "PET_RDZV_ENDPOINT": f"{host}:{policy['rdzvPort'].text or port}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"].text or "c10d",
        "PET_RDZV_ID": policy["rdzvId"].text,
        "PET_RDZV_CONF": ",".join(f"{p['key'].text}={p['value'].text}" for p in policy["rdzvConf"]),
        "PET_MAX_RESTARTS": policy["maxRestarts"].text,
    }
    env = {name: value for name, value in env.items() if value}
    return env | ({"PET_STANDALONE": ""} if policy["standalone"].data is True else {})
