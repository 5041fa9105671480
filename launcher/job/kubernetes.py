"""The section ``kubernetes`` of a job file: what a cluster must be told, and no other target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.contract.agent_settings import START_LIMIT_S
from launcher.job.storage import CLAIM, EPHEMERAL, NAME, parse_volume
from launcher.job.types import AsPairs, Flag, Pairs, Read, Section, Text, matching, text

_CLAIM_WORDS = "pvc/CLAIM or pvc/CLAIM/FOLDER"
_NO_PARENTS = r"(?!.*\.\.)"


ObjectName = Annotated[
    str, matching(NAME, "a Kubernetes name: lower-case letters, digits, - and .")
]
ClaimText = Annotated[str, matching(f"{_NO_PARENTS}{CLAIM}", _CLAIM_WORDS)]
Storage = Annotated[
    str, matching(f"{_NO_PARENTS}({CLAIM}|{EPHEMERAL})", f"{_CLAIM_WORDS}, or {EPHEMERAL}")
]
VolumeText = Annotated[
    str,
    Read(
        parse_volume,
        "pvc/CLAIM[/FOLDER]:TARGET, with :ro at the end where it is only read",
        text(f"{_NO_PARENTS}{CLAIM}:/[^:]+(:(ro|rw))?"),
        keep=True,
    ),
]
Resource = Annotated[
    str,
    matching(
        r"[a-z0-9.-]+/[A-Za-z0-9._-]+", "the name of a resource of the nodes, such as rdma/hca"
    ),
]
Kind = Literal["pytorchjob", "trainjob", "jobset", "job"]


class TolerationSpec(Section):
    """A taint that the pods put up with, by Kubernetes' own names."""

    key: Annotated[Text | None, Field(examples=["dedicated"])] = None
    """The taint's key. Left out: any."""
    operator: Literal["Exists", "Equal"] | None = None
    """``Exists``: whatever the taint's value is. ``Equal``: only with ``value``. Left out:
    ``Equal`` where ``value`` is given, else ``Exists``."""
    value: Annotated[Text | None, Field(examples=["training"])] = None
    """The taint's value, with ``Equal``."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Left out: any."""


class KubernetesSpec(Section):
    """Only for ``--on kubernetes``: pods of a cluster."""

    kind: Annotated[Kind, Field(examples=["job"])] = "pytorchjob"
    """What the nodes are made of. ``pytorchjob``: Kubeflow's training operator, elastic unless
    ``rdzv.backend`` is ``static``. ``trainjob``: Kubeflow Trainer 2. ``jobset``: all pods start
    again together. ``job``: an Indexed Job, which needs no operator. ``--kind`` overrides it."""
    namespace: Annotated[ObjectName | None, Field(examples=["training"])] = None
    """Where the objects go. Left out: the namespace of the context in use."""
    checkpoint: Annotated[Storage | None, Field(examples=["pvc/fabric-train", "ephemeral"])] = None
    """The storage behind ``CHECKPOINT_DIR``: a PersistentVolumeClaim that all nodes can write to
    (``ReadWriteMany``, for more than one node), and a folder in it, else one called like the job.
    ``ephemeral``: each pod's own disk, lost with the pod; a job that is elastic or may restart
    has to say so, because it would silently start from nothing."""
    run: Annotated[ClaimText | None, Field(examples=["pvc/fabric-train/runs"])] = None
    """The storage of the run folder: logs of every worker, ledger, outcomes. Left out: the folder
    ``runs`` of the checkpoints' claim; where they are ephemeral, each pod's own disk."""
    volumes: tuple[VolumeText, ...] = Field(
        default=(), examples=[["pvc/datasets/imagenet:/data:ro"]]
    )
    """More storage, such as data sets. Every ``mounts`` target of the job must be among them,
    because the launcher's own folders are not on the cluster's nodes."""
    secret: Annotated[ObjectName | None, Field(examples=["digits-secrets"])] = None
    """The Secret that holds the variables named under ``secrets``, by the same names. Left out:
    the job's name and ``-secrets``."""
    image_pull_secrets: tuple[ObjectName, ...] = Field(default=(), examples=[["registry"]])
    """Secrets with which the nodes pull the image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When a node pulls the image. ``Always``: before each start, so that an image that was pushed
    again under the same tag is used. Left out, Kubernetes' default: ``Always`` for the tag
    ``latest`` or none, else ``IfNotPresent``."""
    service_account: Annotated[ObjectName | None, Field(examples=["training"])] = None
    """The pods' service account. They never get its token. Left out: the namespace's default."""
    run_as_user: Annotated[int, Field(strict=True, ge=1, examples=[1000])] = 1000
    """The uid and gid that the pods run as, never root."""
    priority_class: Annotated[ObjectName | None, Field(examples=["high-priority"])] = None
    """The pods' PriorityClass."""
    node_selector: Annotated[Pairs, AsPairs(Text, str)] = Field(
        default=(), examples=[{"node.kubernetes.io/instance-type": "p5.48xlarge"}]
    )
    """Labels that a node must have."""
    tolerations: tuple[TolerationSpec, ...] = Field(
        default=(), examples=[[{"key": "dedicated", "value": "training"}]]
    )
    """Taints that the pods put up with; that of NVIDIA's GPUs is added where GPUs are asked for."""
    whole_node: Annotated[Flag, Field(examples=[True])] = False
    """Whether no two pods of the job may share a node. Otherwise they are spread where possible."""
    gang: Literal["volcano", "kueue"] | None = None
    """Who sees to it that the pods start together or not at all. Left out: nobody."""
    queue: ObjectName | None = None
    """The queue, with ``gang``; Kueue needs one."""
    host_network: Annotated[Flag, Field(examples=[True])] = False
    """Whether the pods use their node's network. No longer admissible under Pod Security
    ``restricted`` nor ``baseline``."""
    rdma_resource: Annotated[Resource, Field(examples=["rdma/hca_shared_devices_a"])] = "rdma/hca"
    """What the cluster's device plugin calls an RDMA device, for ``resources.rdma``."""
    start_limit_s: Annotated[int, Field(strict=True, ge=0, examples=[1800])] = START_LIMIT_S
    """How long, in seconds, a pod may be kept from starting by what only a person can change: an
    image that cannot be pulled, a Secret, ConfigMap or claim that is missing. The launcher that
    follows the run ends it then, unless enough other nodes train. 0: never."""
