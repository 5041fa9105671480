"""What ``launcher check`` knows: every rule, how bad its breach is, and why it hurts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launcher.manifests.source import Value


class Severity(enum.Enum):
    """What a breach costs."""

    ERROR = "error"
    """The object is refused, or the job cannot do what its manifest says."""
    WARNING = "warning"
    """It works, and costs time, GPUs or a surprise."""


class Rule(enum.Enum):
    """Every rule, by the name that ``--json`` and the docs give it."""

    # any object
    UNKNOWN_FIELD = "unknown-field"
    LARGE_CRD = "large-crd"
    # pods of any kind
    CONTAINERS = "containers"
    CONTAINER_IMAGE = "container-image"
    ENV_NOT_TEXT = "env-not-text"
    SECRET_IN_CLEAR = "secret-in-clear"
    GPU_REQUESTS = "gpu-requests"
    SHM_SMALL = "shm-small"
    SHM_UNBOUNDED = "shm-unbounded"
    SHM_OVER_MEMORY = "shm-over-memory"
    HOST_NETWORK_DNS = "host-network-dns"
    # PyTorchJob
    JOB_NAME = "job-name"
    REPLICA_SPECS = "replica-specs"
    REPLICA_TYPE = "replica-type"
    MASTER_REPLICAS = "master-replicas"
    WORKER_REPLICAS = "worker-replicas"
    CONTAINER_NAME = "container-name"
    ELASTIC_NEEDS_WORKER = "elastic-needs-worker"
    NPROC_TWICE = "nproc-twice"
    MANAGED_BY = "managed-by"
    RESTART_POLICY_VALUE = "restart-policy-value"
    RESTART_ALWAYS = "restart-always"
    POD_RESTART_POLICY = "pod-restart-policy"
    CLEAN_POD_POLICY_VALUE = "clean-pod-policy-value"
    CLEAN_POD_POLICY_NONE = "clean-pod-policy-none"
    BACKOFF_NEGATIVE = "backoff-negative"
    BACKOFF_WITH_EXIT_CODE = "backoff-with-exit-code"
    DEADLINE_IS_LATE = "deadline-is-late"
    NO_ADDRESS = "no-address"
    ELASTIC_BOUNDS = "elastic-bounds"
    ELASTIC_UNWRITTEN = "elastic-unwritten"
    ELASTIC_MASTER = "elastic-master"
    ELASTIC_SUCCESS = "elastic-success"
    STANDALONE = "standalone"
    NPROC_AUTO = "nproc-auto"
    NPROC_NOT_GPUS = "nproc-not-gpus"
    RANK_COUNTS_PODS = "rank-counts-pods"
    ENV_OVERRIDDEN = "env-overridden"
    READINESS_PROBE = "readiness-probe"
    INIT_CONTAINER_RESTRICTED = "init-container-restricted"
    # TrainJob and its runtimes
    TRAINJOB_RUNTIME = "trainjob-runtime"
    TRAINJOB_NO_TRAINER = "trainjob-no-trainer"
    TRAINJOB_RESERVED_ENV = "trainjob-reserved-env"
    TRAINJOB_ELASTIC = "trainjob-elastic"
    TRAINJOB_CONTAINER = "trainjob-container"
    # JobSet
    JOBSET_BACKOFF = "jobset-backoff"
    JOBSET_MAX_RESTARTS = "jobset-max-restarts"
    JOBSET_UNREADY = "jobset-unready"
    # Job and its Service
    JOB_NOT_INDEXED = "job-not-indexed"
    JOB_COUNTS = "job-counts"
    JOB_SUBDOMAIN = "job-subdomain"
    JOB_RESTART_POLICY = "job-restart-policy"
    JOB_DISRUPTION = "job-disruption"
    SERVICE_ABSENT = "service-absent"
    SERVICE_LATE = "service-late"
    SERVICE_NOT_HEADLESS = "service-not-headless"
    SERVICE_UNREADY = "service-unready"
    SERVICE_SELECTOR = "service-selector"


_WARNINGS = frozenset(
    {
        *(Rule.LARGE_CRD, Rule.SECRET_IN_CLEAR, Rule.SHM_SMALL, Rule.SHM_UNBOUNDED),
        *(Rule.POD_RESTART_POLICY, Rule.CLEAN_POD_POLICY_NONE, Rule.DEADLINE_IS_LATE),
        *(Rule.ELASTIC_UNWRITTEN, Rule.ELASTIC_SUCCESS, Rule.NPROC_AUTO, Rule.RANK_COUNTS_PODS),
        *(Rule.ENV_OVERRIDDEN, Rule.READINESS_PROBE, Rule.INIT_CONTAINER_RESTRICTED),
        *(Rule.JOBSET_MAX_RESTARTS, Rule.JOB_DISRUPTION, Rule.SERVICE_ABSENT, Rule.SERVICE_LATE),
    }
)

WHY: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.UNKNOWN_FIELD: "an API server drops or refuses what it does not know",
        Rule.LARGE_CRD: "kubectl apply copies it into an annotation, which may hold 256 KiB",
        Rule.CONTAINERS: "a pod without containers is refused",
        Rule.CONTAINER_IMAGE: "the webhook refuses a container without an image",
        Rule.ENV_NOT_TEXT: "an API server refuses a value of env that is not text",
        Rule.SECRET_IN_CLEAR: "whoever may read the object, its history or this file has it",
        Rule.GPU_REQUESTS: "GPUs cannot be overcommitted: requests without equal limits are "
        "refused",
        Rule.SHM_SMALL: "/dev/shm is 64 MB: data loader workers and NCCL die of a bus error",
        Rule.SHM_UNBOUNDED: "without a sizeLimit it may grow to half of the node's memory",
        Rule.SHM_OVER_MEMORY: "a memory volume counts against the memory limit: filling it is an "
        "out-of-memory kill",
        Rule.HOST_NETWORK_DNS: "with the host's name servers, names of pods and services do not "
        "resolve",
        Rule.JOB_NAME: "every pod and service is named after the job, and such names have at "
        "most 63 characters",
        Rule.REPLICA_SPECS: "the webhook refuses a job without replicas",
        Rule.REPLICA_TYPE: "the webhook refuses keys other than Master and Worker",
        Rule.MASTER_REPLICAS: "the webhook refuses a Master unless replicas: 1 is written",
        Rule.WORKER_REPLICAS: "the webhook refuses fewer than one replica",
        Rule.CONTAINER_NAME: "the webhook refuses a template without a container called pytorch",
        Rule.ELASTIC_NEEDS_WORKER: "the webhook refuses an elasticPolicy without a Worker",
        Rule.NPROC_TWICE: "the webhook refuses both nprocPerNode and elasticPolicy.nProcPerNode",
        Rule.MANAGED_BY: "the webhook refuses any other controller",
        Rule.RESTART_POLICY_VALUE: "nothing refuses it, and pods are created with a policy that "
        "the cluster then refuses, again and again",
        Rule.RESTART_ALWAYS: "a container that has succeeded is started again: no pod ever "
        "completes, so the job never ends",
        Rule.POD_RESTART_POLICY: "the operator overwrites it with that of the replica",
        Rule.CLEAN_POD_POLICY_VALUE: "nothing refuses it, and no pod is ever cleaned up",
        Rule.CLEAN_POD_POLICY_NONE: "pods of a finished job stay, and those still running hold "
        "their GPUs",
        Rule.BACKOFF_NEGATIVE: "nothing refuses it, and the job fails at its first restart",
        Rule.BACKOFF_WITH_EXIT_CODE: "backoffLimit counts restarts of containers, ExitCode makes "
        "new pods: the limit is never reached",
        Rule.DEADLINE_IS_LATE: "the operator looks at it only when something else happens: a hung "
        "job goes on holding its GPUs",
        Rule.NO_ADDRESS: "without a Master or an elasticPolicy no worker is told an address: each "
        "trains alone, or waits for ever",
        Rule.ELASTIC_BOUNDS: "nothing refuses it, and torchrun does: every pod fails at its start",
        Rule.ELASTIC_UNWRITTEN: "what is left out is taken from other fields or from torchrun: no "
        "restarts, fixed bounds, one rendezvous id for all jobs",
        Rule.ELASTIC_MASTER: "the endpoint is worker 0 all the same, and the Master's pod waits "
        "for a rank that the others do not give it",
        Rule.ELASTIC_SUCCESS: "nothing but torchrun reads PET_*: each worker trains alone, and the "
        "first that ends with 0 is the success of the whole job",
        Rule.STANDALONE: "the operator sets PET_STANDALONE to nothing, and torchrun crashes on it",
        Rule.NPROC_AUTO: "without a GPU auto is the number of the host's cores, whatever the limit",
        Rule.NPROC_NOT_GPUS: "workers without a GPU of their own fail or share one; GPUs without "
        "a worker are idle",
        Rule.RANK_COUNTS_PODS: "the operator's RANK and WORLD_SIZE count pods times processes, "
        "and only torchrun starts those processes: init_process_group waits for ever",
        Rule.ENV_OVERRIDDEN: "the operator appends its own value, and the last one wins",
        Rule.READINESS_PROBE: "the job's services publish only ready pods: a probe that waits for "
        "training waits for a rendezvous that waits for it",
        Rule.INIT_CONTAINER_RESTRICTED: "the operator gives workers beside a Master an init "
        "container that Pod Security restricted refuses",
        Rule.TRAINJOB_RUNTIME: "a TrainJob without a runtime is refused",
        Rule.TRAINJOB_NO_TRAINER: "nothing is injected where spec.trainer is left out: no address, "
        "no rank",
        Rule.TRAINJOB_RESERVED_ENV: "the webhook refuses variables that the trainer sets itself",
        Rule.TRAINJOB_ELASTIC: "the trainer has no elasticity: the field does nothing",
        Rule.TRAINJOB_CONTAINER: "variables go to the container node of the job node alone",
        Rule.JOBSET_BACKOFF: "a child job that replaces single pods leaves the others of the gang "
        "in a dead collective",
        Rule.JOBSET_MAX_RESTARTS: "the first failure ends the whole set",
        Rule.JOBSET_UNREADY: "pods find each other only when ready, and are ready only when they "
        "have found each other",
        Rule.JOB_NOT_INDEXED: "pods have no index, so no rank and no name of their own",
        Rule.JOB_COUNTS: "the rendezvous waits for nodes that start only when others have ended",
        Rule.JOB_SUBDOMAIN: "pods have no names by which the others could reach them",
        Rule.JOB_RESTART_POLICY: "only Never lets the job make a new pod for a lost one; a "
        "podFailurePolicy with any other policy is refused",
        Rule.JOB_DISRUPTION: "drained and preempted pods are counted as failures of the training",
        Rule.SERVICE_ABSENT: "without that headless service the pods' names do not resolve",
        Rule.SERVICE_LATE: "name servers remember for 30 s that a name does not exist",
        Rule.SERVICE_NOT_HEADLESS: "names of single pods exist only under a headless service",
        Rule.SERVICE_UNREADY: "pods find each other only when ready, and are ready only when they "
        "have found each other",
        Rule.SERVICE_SELECTOR: "the service selects no pod of the job: its names do not resolve",
    }
)


def severity_of(rule: Rule) -> Severity:
    """How bad a breach of the rule is."""
    return Severity.WARNING if rule in _WARNINGS else Severity.ERROR


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A breach of a rule at a place of a manifest; ``fix`` is what to write instead."""

    rule: Rule
    at: Value
    what: str
    fix: str


Hits = Iterable[Hit]


def hit(rule: Rule, at: Value, what: str, fix: str) -> Hit:
    """A breach, in one line for the code that finds it."""
    return Hit(rule=rule, at=at, what=what, fix=fix)
