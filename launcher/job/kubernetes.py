"""The section ``kubernetes`` of a job file: what a cluster must be told, and no other target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.contract.node_plan import START_LIMIT_S
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
        "pvc/CLAIM[/FOLDER]:TARGET, with :ro at the end if pods only read it",
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
    """A taint that the pods tolerate, by Kubernetes' own names."""

    key: Annotated[Text | None, Field(examples=["dedicated"])] = None
    """The taint's key. Left out: any."""
    operator: Literal["Exists", "Equal"] | None = None
    """``Exists``: the taint may have any value. ``Equal``: it must have ``value``. Left out:
    ``Equal`` if ``value`` is given, else ``Exists``."""
    value: Annotated[Text | None, Field(examples=["training"])] = None
    """The taint's value, with ``Equal``."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Left out: any."""


class KubernetesSpec(Section):
    """Only for ``--on kubernetes``: pods of a cluster."""

    kind: Annotated[Kind, Field(examples=["job"])] = "pytorchjob"
    """Which object makes the pods. ``pytorchjob``: Kubeflow's training operator; elastic unless
    ``rdzv.backend`` is ``static``. ``trainjob``: Kubeflow Trainer 2; never elastic. ``jobset``: all
    pods start again together; never elastic. ``job``: an Indexed Job, which needs no operator; can
    be elastic. ``--kind`` overrides this key."""
    namespace: Annotated[ObjectName | None, Field(examples=["training"])] = None
    """The namespace of the job's objects. Left out: the namespace of the context in use."""
    checkpoint: Annotated[Storage | None, Field(examples=["pvc/fabric-train", "ephemeral"])] = None
    """The storage behind ``CHECKPOINT_DIR``: a folder of a PersistentVolumeClaim that all nodes can
    write to (``ReadWriteMany`` for more than one node); without a folder, one named after the job.
    ``ephemeral``: each pod's own disk, lost with the pod. A job that is elastic, or has
    ``max_restarts`` or ``checkpoint_dir``, is refused without this key: it would start from
    nothing."""
    run: Annotated[ClaimText | None, Field(examples=["pvc/fabric-train/runs"])] = None
    """The storage of the run folder: logs of every worker, ledgers, outcomes. Left out: the folder
    ``runs`` of the checkpoints' claim, or each pod's own disk if they have no claim."""
    volumes: tuple[VolumeText, ...] = Field(
        default=(), examples=[["pvc/datasets/imagenet:/data:ro"]]
    )
    """More storage, such as data sets. Every ``mounts`` target of the job must be among these
    targets, because pods do not see folders of the launcher's machine."""
    secret: Annotated[ObjectName | None, Field(examples=["digits-secrets"])] = None
    """The Secret that holds the values of the variables under ``secrets``, by the same names. Left
    out: the job's name with ``-secrets``."""
    image_pull_secrets: tuple[ObjectName, ...] = Field(default=(), examples=[["registry"]])
    """Secrets with which the nodes pull the image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When a node pulls the image. ``Always``: before each start, so an image that was pushed again
    under the same tag is used. Left out: ``Always`` for the tag ``latest`` or no tag, else
    ``IfNotPresent``, as Kubernetes has it."""
    service_account: Annotated[ObjectName | None, Field(examples=["training"])] = None
    """The pods' service account; they never get its token. Left out: the namespace's default."""
    run_as_user: Annotated[int, Field(strict=True, ge=1, examples=[1000])] = 1000
    """The uid and gid of the pods' processes; never root."""
    priority_class: Annotated[ObjectName | None, Field(examples=["high-priority"])] = None
    """The pods' PriorityClass."""
    node_selector: Annotated[Pairs, AsPairs(Text, str)] = Field(
        default=(), examples=[{"node.kubernetes.io/instance-type": "p5.48xlarge"}]
    )
    """Labels that a node of the cluster must have to get a pod of the job."""
    tolerations: tuple[TolerationSpec, ...] = Field(
        default=(), examples=[[{"key": "dedicated", "value": "training"}]]
    )
    """Taints that the pods tolerate. A job that asks for GPUs also tolerates ``nvidia.com/gpu``."""
    whole_node: Annotated[Flag, Field(examples=[True])] = False
    """Whether no two pods of the job may share a node, as always with ``host_network``. Otherwise
    they are spread over the nodes where possible."""
    gang: Literal["volcano", "kueue"] | None = None
    """Which system starts the pods together or not at all. Left out: none."""
    queue: ObjectName | None = None
    """The name of the queue, only with ``gang``; Kueue needs one."""
    host_network: Annotated[Flag, Field(examples=[True])] = False
    """Whether the pods use their node's network. Pod Security ``restricted`` and ``baseline`` then
    refuse them."""
    rdma_resource: Annotated[Resource, Field(examples=["rdma/hca_shared_devices_a"])] = "rdma/hca"
    """The name that the cluster's device plugin gives RDMA devices, for ``resources.rdma``."""
    start_limit_s: Annotated[int, Field(strict=True, ge=0, examples=[1800])] = START_LIMIT_S
    """Seconds that a pod may be unable to start for a reason that only a person can remove: an
    image that cannot be pulled, a missing Secret, ConfigMap or claim, or a server that refuses the
    pod. After that the launcher that follows the run ends it, unless enough other nodes train.
    0: no limit."""
