"""JobSpec: the keys of a job file with their defaults, validated; the planner's input.

The text below each field is its documentation: the JSON Schema, the editor's help and
docs/job-file.md are made from it. ``None`` means "the planner decides".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from launcher.contract.node_plan import DETECTION_LIMIT_S, GPU_FREE_LIMIT_S, HANG_MIN_S
from launcher.job.kubernetes import KubernetesSpec
from launcher.job.slurm import SlurmSpec
from launcher.job.storage import EPHEMERAL, MOUNT, MOUNT_WORDS, split_mount
from launcher.job.types import (
    AsPairs,
    Code,
    Command,
    Cores,
    Count,
    DeviceChoice,
    Endpoint,
    Flag,
    HostPath,
    Image,
    JobName,
    Label,
    Limit,
    ListenAddress,
    MountTarget,
    Nodes,
    OrText,
    Pairs,
    Port,
    Processes,
    Quantity,
    Rdma,
    ScalarText,
    Seconds,
    Section,
    Text,
    TorchVersion,
    Url,
    Variable,
)
from launcher.job.values import (
    IN_IMAGE,
    NodeRange,
    NotAcceptedError,
    parse_devices,
    parse_quantity_bytes,
)


class RdzvConfSpec(Section):
    """Settings of the rendezvous, by torchrun's names. Other names are refused, because torchrun
    would ignore them. The launcher itself sets ``is_host`` and ``rank``."""

    join_timeout: Seconds | None = None
    """Seconds to wait until the group is complete. Left out: 600, in a Slurm array no limit."""
    last_call_timeout: Annotated[Seconds | None, Field(examples=[5])] = None
    """Seconds to wait for more nodes once MIN nodes are there. Left out: 2, but 30 with ``etcd-v2``
    and with ``c10d`` before torch 2.7."""
    close_timeout: Seconds | None = None
    """Seconds that a node waits for the rendezvous to close. Left out: 30."""
    heartbeat_timeout: Seconds | None = None
    """Seconds that one keep-alive of a node may take. Left out: 5."""
    keep_alive_interval: Seconds | None = None
    """Seconds between two keep-alives of a node (torch >= 2.7). Left out: 2, with ``etcd-v2`` 5."""
    keep_alive_max_attempt: Annotated[int, Field(strict=True, ge=1)] | None = None
    """After how many missed keep-alives a node counts as lost (torch >= 2.7). Left out: 3."""
    read_timeout: Annotated[Seconds | None, Field(examples=[600])] = None
    """Seconds to wait for an answer of the store; must be longer than the slowest pull of an image.
    Left out: 300, with ``etcd-v2`` 60."""
    protocol: Literal["http", "https"] | None = None
    """How nodes speak to etcd, with the backend ``etcd-v2``. Left out: ``http``."""
    ssl_cert: Text | None = None
    """The client certificate's path in the container, with the backend ``etcd-v2``."""
    ssl_cert_key: Text | None = None
    """The path of the client certificate's key, with the backend ``etcd-v2``."""
    ca_cert: Text | None = None
    """The path of the certificate authority's certificate, with the backend ``etcd-v2``."""

    @property
    def pairs(self) -> Pairs:
        """What was given, in the order of the keys above, as torchrun takes it."""
        return tuple((key, str(value)) for key, value in self if value is not None)


class RdzvSpec(Section):
    """How the nodes find each other. Leave it out unless the defaults do not fit."""

    backend: Annotated[
        Literal["roster", "static", "c10d", "etcd-v2"] | None, Field(examples=["static"])
    ] = None
    """How the nodes meet. ``roster``: the node agent's own rendezvous, which acts on a lost node
    within seconds; the only one on Slurm. ``static``: a group of fixed size, by address and node
    rank; when a node is lost, all are started again. Only with ``engine: torchrun``: ``c10d``,
    torch's elastic rendezvous without a service, and ``etcd-v2``, an elastic one with an etcd
    server. Left out: ``roster``; under torchrun ``static`` for a fixed number of nodes above one,
    else ``c10d``."""
    port: Annotated[Port | None, Field(examples=[29400])] = None
    """The port at which the nodes meet; not for ``etcd-v2`` and Slurm. Left out: a free port if the
    launcher can find one, else torchrun's own (29500 for ``static``, else 29400)."""
    endpoint: Annotated[Endpoint | None, Field(examples=["etcd.internal:2379"])] = None
    """The address of the etcd server, only with ``etcd-v2``, which needs it. With other backends
    the nodes meet at one of them, which the launcher chooses."""
    id: Annotated[ScalarText | None, Field(min_length=1, examples=["digits-a"])] = None
    """The name of the rendezvous; each run needs its own. Left out: the run id. When the launcher
    starts all nodes anew, it makes a new name."""
    conf: RdzvConfSpec = Field(
        default=RdzvConfSpec.model_construct(), examples=[{"last_call_timeout": 5}]
    )
    """Settings of the rendezvous, as ``torchrun --rdzv-conf`` names them. A key that is left out
    has torchrun's default, or the launcher's if torchrun's is known to fail. Under the agent
    ``roster`` takes only ``join_timeout``, ``last_call_timeout`` and ``read_timeout``, and
    ``static`` none."""


class MountSpec(Section):
    """A folder or file of the host, made visible in the container."""

    source: Annotated[HostPath, Field(examples=["./data"])]
    """The path on the host, absolute or relative to the folder where the launcher is called."""
    target: Annotated[MountTarget, Field(examples=["/data"])]
    """The absolute path in the container. ``/launcher`` and all below it belong to the launcher."""
    read_only: Annotated[Flag, Field(examples=[True])] = False
    """Whether the container may only read it."""

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        return split_mount(value)


class ResourcesSpec(Section):
    """What one node gets."""

    cpus: Annotated[Cores | None, Field(examples=[4])] = None
    """CPU cores, fractions included (Slurm: rounded up). Left out: no limit, or Slurm's default."""
    memory: Annotated[Quantity | None, Field(examples=["8Gi"])] = None
    """Memory, as a Kubernetes quantity. Left out: no limit, or the Slurm partition's default."""
    shm: Annotated[Quantity, Field(examples=["2Gi"])] = "1Gi"
    """Size of /dev/shm, where data loader workers and NCCL pass data; the usual 64 MB of a
    container are too little. On Kubernetes it counts against ``memory``; no effect on Slurm."""
    gpus: Annotated[Count | None, Field(examples=[8])] = None
    """GPUs of one node. Left out: as many as ``nproc_per_node`` needs; on Kubernetes none, on Slurm
    as the section ``slurm`` says. 0: none, even if there are some. A target with fewer GPUs refuses
    the job."""
    rdma: Annotated[Rdma, Field(examples=[True])] = False
    """Whether the node gets the host's RDMA devices and may lock memory. On Kubernetes also how
    many devices; ``true`` is one there. No effect with ``--on local`` and on Slurm."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_quantity_bytes(self.memory)

    @property
    def shm_bytes(self) -> int:
        return parse_quantity_bytes(self.shm)


class HealthSpec(Section):
    """Where the agent answers ``/healthz`` and ``/metrics`` (Prometheus text) over HTTP."""

    address: Annotated[ListenAddress, Field(examples=["0.0.0.0"])] = "127.0.0.1"
    """The address to listen on. The default is reached from inside the node alone; on Kubernetes
    the agent listens on the pod's address instead."""
    port: Annotated[Port | None, Field(examples=[9400])] = None
    """The port. Left out: no health server, but on Kubernetes port 9400 unless the pods have
    ``host_network``. Nodes on one machine's network need different ports, so with ``--on local``
    only a single node can have one. No effect on Slurm."""


class AgentSpec(Section):
    """Settings of the node agent (``engine: agent``). Leave them out unless they do not fit."""

    detection_limit_s: Annotated[Limit, Field(examples=[10, 1.5])] = DETECTION_LIMIT_S
    """Seconds of silence after which a node counts as lost. Below 10, a node with a busy CPU or a
    lossy network may be taken for lost."""
    preload: tuple[Text, ...] = Field(default=(), examples=[["transformers"]])
    """Modules that are imported once, in the process from which workers are forked: with
    ``start: fork``, and in a hold. They must start neither threads nor CUDA. torch, and Fabric if
    the script uses it, are imported anyway."""
    same_failure_limit: Annotated[int, Field(strict=True, ge=1)] = 3
    """After so many equal failures in a row without progress between them the run ends, even if
    ``max_restarts`` is not used up."""
    hang_min_s: Annotated[Count, Field(examples=[120])] = HANG_MIN_S
    """Seconds without a step before which idle workers never count as hanging. Above it the limit
    is ten times the longest pause between steps so far. Hanging workers are killed, which counts as
    their failure. 0: no worker ever counts as hanging."""
    hang_max_s: Annotated[Seconds | None, Field(examples=[3600])] = None
    """Seconds without a step after which even workers that compute count as hanging. Left out: 1800
    for a job with ``max_restarts``, else no limit, because a long evaluation would end the run."""
    gpu_free_limit_s: Seconds = GPU_FREE_LIMIT_S
    """Seconds that a restart waits for dead workers to free GPU memory; then the node fails."""
    health: HealthSpec = HealthSpec.model_construct()
    """The agent's own HTTP server."""
    in_image: bool | None = None
    """Whether nodes start the agent in their image, instead of one that the launcher brings along.
    Left out: on Docker if the image's label names the launcher's version, on Kubernetes if the
    image is called ``fabric-train``, on Slurm never. Hosts always get the launcher's own."""


class NotifySpec(Section):
    """Who is told about the run by the launcher that follows it (``run``, also with ``--detach``).
    Nodes, manifests of ``render`` and ``launcher node`` tell nobody. A notice that fails or takes
    longer than 10 s is given up, and the launcher says so; the run's outcome stays the same."""

    command: Annotated[Text | None, Field(examples=['mail -s "$NOTICE_TEXT" me < /dev/null'])] = (
        None
    )
    """A line for ``sh``, run where the launcher was called, with its environment and secrets.
    ``NOTICE_TEXT`` is one line about the run, ``NOTICE_JSON`` the object that the webhook gets."""
    webhook: Annotated[Url | None, Field(examples=["https://chat.internal/hooks/a"])] = None
    """A URL that gets a JSON object by POST: ``text`` (one line, as chats want it), ``event`` (end
    or restarts), ``run_id``, ``job``, ``target`` and ``restarts`` by cause; at the end also
    ``state``, ``cause``, ``detail``, ``verdict``, ``exit_code`` and ``duration_s``. The run's
    folder keeps the URL: if it is secret, call it from ``command``."""
    when: Annotated[Literal["end", "failure"], Field(examples=["failure"])] = "end"
    """``end``: send a notice whenever a run ends. ``failure``: only if the run failed."""
    restarts: Annotated[Count | None, Field(examples=[3])] = None
    """Send one more notice as soon as workers and nodes were restarted so many times; on Kubernetes
    only nodes count. Left out or 0: no such notice."""


class LocalSpec(Section):
    """Only for ``--on local``: processes on this machine, without a container."""

    python: Annotated[HostPath | None, Field(examples=[".venv/bin/python"])] = None
    """The interpreter that runs the workers and has torch. Left out: the one that runs the
    launcher, or ``python3`` of the PATH if only that one has torch."""


class DockerSpec(Section):
    """Only for Docker containers: ``--on docker``, and ``--on hosts`` with ``runtime: docker``."""

    runtime: Annotated[Text | None, Field(examples=["nvidia"])] = None
    """The container runtime, by the name that the Docker engine has for it. Left out: the engine's
    default."""
    labels: Annotated[Pairs, AsPairs(Label, ScalarText)] = Field(
        default=(), examples=[{"team": "vision"}]
    )
    """Labels of your own for the containers; names that start with ``launcher.`` are refused."""
    extra_hosts: Annotated[Pairs, AsPairs(Text, Text)] = Field(
        default=(), examples=[{"data.internal": "10.0.0.7"}]
    )
    """More host names for the containers, each with its IP address or ``host-gateway``."""


class HostsSpec(Section):
    """Only for ``--on hosts``: machines that are reached over SSH."""

    inventory: Annotated[HostPath | None, Field(examples=["hosts.yaml"])] = None
    """The machines: a hosts.yaml, a hostfile, or names such as ``gpu[1-4]``. ``--hosts`` on the
    command line overrides it."""
    runtime: Annotated[Literal["docker", "python"], Field(examples=["python"])] = "docker"
    """``docker``: each node is a container of ``image``. ``python``: each node runs in the host's
    own Python, on a copy of the job's ``code``."""
    python: Annotated[HostPath | None, Field(examples=["/opt/venv/bin/python"])] = None
    """With ``runtime: python``, the interpreter on the hosts that has torch. Left out: ``python3``.
    ``python`` in the inventory overrides it."""


class JobSpec(Section):
    """A job file: what to run, on how many nodes, with which resources. Keys are spelled as
    torchrun and Kubernetes spell them."""

    model_config = ConfigDict(title="Job file")

    name: Annotated[JobName, Field(examples=["digits"])]
    """The job's name, after which runs, containers and Kubernetes objects are named. With at most
    40 characters, no name made from it is longer than Kubernetes allows."""
    image: Annotated[Image | None, Field(examples=["ghcr.io/me/train:1.4"])] = None
    """The container image. It needs torch, but nothing of this project. Left out: the image that
    ``make image`` builds, ``fabric-train:cuda`` if the job has GPUs, else ``fabric-train:cpu``. A
    job that names an image runs in containers of this machine, unless a target is named."""
    command: Annotated[
        Command, Field(examples=[["-m", "train", "--epochs", 3], "train.py --lr 0.1"])
    ]
    """What torchrun runs: a script path or ``-m`` and a module, then its arguments. A list of
    words, or one text that is split as a shell splits it. Other shell syntax does not work:
    variables stay as they are written, and ``&&``, ``|``, ``>`` or ``;`` without quotes are
    refused. Leave out ``torchrun`` and ``python``: the launcher starts those. If the launcher can
    see before the start that the script is missing, it refuses the job (exit code 2)."""
    code: Annotated[Code | None, Field(examples=["image", "."])] = None
    """Where the training code is: a folder, relative to where the launcher is called, or ``image``
    if the image holds it. Left out: the launcher looks there for the script or, with ``-m``, the
    module. If it finds that, the code is the git repository around it without what git ignores, or,
    without a repository, the folder that holds it. If not, the image holds the code.
    ``.launcherignore`` in the code's folder, written like a ``.gitignore``, names more files that
    are not copied. ``--on local`` and ``--on docker`` use the folder itself; other targets get a
    copy of at most 100 MiB, pods one of at most 8 MB packed."""
    nnodes: Annotated[Nodes, Field(examples=[2, "1:4"])] = NodeRange(1, 1)
    """How many nodes: a number, or ``MIN:MAX`` for an elastic job, which is started on MAX nodes
    and goes on while MIN are left. Left out in a Slurm allocation or with ``launcher node``: all
    nodes that are there. One machine refuses more nodes than its cores can start."""
    nproc_per_node: Annotated[Processes, Field(examples=[8, "gpu"])] = "auto"
    """Processes per node. A number; ``gpu``: one for each GPU; ``cpu``: one for each core, without
    GPUs; ``auto``: ``gpu`` if there are GPUs, else ``cpu``. Kubernetes and Slurm count the GPUs and
    cores that the job asks for."""
    devices: Annotated[DeviceChoice | None, Field(examples=[2, [1, 3], "free:2"])] = None
    """Which GPUs of each machine: ``2`` takes two, ``-1`` or ``auto`` all, ``[1, 3]`` or ``"1,3"``
    these two, ``"1,"`` GPU 1 alone, ``free:2`` two that no process uses. Each GPU gets one process,
    unless ``nproc_per_node`` is set; without GPUs a number is the number of processes. Nodes on one
    machine share out its GPUs. Kubernetes and Slurm accept numbers, but no ids."""
    rdzv: RdzvSpec = Field(
        default=RdzvSpec.model_construct(),
        examples=[{"port": 29400, "conf": {"last_call_timeout": 5}}],
    )
    """How the nodes find each other."""
    max_restarts: Annotated[Count, Field(examples=[3])] = 0
    """How many times the workers are started again after a failure. Under the agent only failures
    of the workers themselves count, over the whole run; under torchrun a lost node counts too."""
    engine: Annotated[Literal["torchrun", "agent"] | None, Field(examples=["torchrun"])] = None
    """What starts and watches the workers on each node. ``torchrun``: torch's own command, with
    corrected settings; not on Kubernetes and Slurm. ``agent``: torch's elastic agent inside this
    project's supervisor, which also acts on lost nodes, hangs and preemption. Left out: ``agent``.
    ``LAUNCHER_ENGINE=torchrun`` in the launcher's environment chooses torchrun for every job."""
    start: Annotated[Literal["fresh", "fork"] | None, Field(examples=["fork"])] = None
    """How the agent starts workers. ``fresh``: each in a new interpreter. ``fork``: forked from a
    process that has imported torch already, which makes starts and restarts several times faster;
    if that is not possible, the agent says why and starts fresh ones. Left out: ``fresh``."""
    agent: AgentSpec = Field(
        default=AgentSpec.model_construct(), examples=[{"detection_limit_s": 5}]
    )
    """Settings of the node agent."""
    checkpoint_dir: Annotated[HostPath | None, Field(examples=["./checkpoints/digits"])] = None
    """Where checkpoints are kept and resumed from, relative to where the launcher is called;
    scripts find it as ``CHECKPOINT_DIR``. On hosts and Slurm all nodes must share it; Kubernetes
    has ``kubernetes.checkpoint`` instead. Left out: a folder of the run, so that every run starts
    from nothing; on hosts each has its own, which a job that is elastic or has ``max_restarts`` and
    reads there is refused. ``ephemeral``: as left out, and it is meant."""
    env: Annotated[Pairs, AsPairs(Variable, ScalarText)] = Field(
        default=(), examples=[{"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4}]
    )
    """Variables for the workers, with values as written: ``1.10`` stays ``1.10``, ``NO`` stays
    ``NO``. Names that torchrun or the launcher sets (``RANK``, ``MASTER_ADDR``, ``PET_*``,
    ``TORCHELASTIC_*``, ``LAUNCHER_*``, ``RUN_DIR``, ``CHECKPOINT_DIR`` ...) are refused."""
    secrets: tuple[Variable, ...] = Field(
        default=(),
        examples=[["WANDB_API_KEY"]],
        json_schema_extra={"errorMessage": "a list of variables' names"},
    )
    """Names of variables whose values come from the launcher's environment, on Kubernetes from
    ``kubernetes.secret``. The values are never in this file, the plan, a log or on the screen."""
    mounts: tuple[Annotated[MountSpec, OrText(MOUNT, MOUNT_WORDS)], ...] = Field(
        default=(), examples=[["./data:/data:ro", {"source": "/scratch", "target": "/scratch"}]]
    )
    """Folders or files of the host that containers see, each as ``source:target``,
    ``source:target:ro`` or the keys below. Pods see ``kubernetes.volumes`` instead."""
    workdir: Annotated[Text | None, Field(examples=["/workspace"])] = None
    """The working folder of the workers: an absolute path in the container (with ``--on local``, on
    this machine), or one relative to where the launcher is called. Left out: the folder where the
    launcher is called, as the nodes see it, or the image's own if the image holds the code."""
    resources: ResourcesSpec = ResourcesSpec.model_construct()
    """What one node gets. ``cpus``, ``memory`` and ``shm`` do not limit processes without a
    container (``--on local``, ``hosts.runtime: python``), which use the machine as it is."""
    stop_grace_s: Annotated[Seconds, Field(examples=[120])] = 30
    """Seconds between the request to stop and the kill, in which the workers can save a last
    checkpoint."""
    torch_version: Annotated[TorchVersion | None, Field(examples=["2.10", "2.4.1"])] = None
    """The version of torch in the image, if the image's label does not name it; decides which of
    torchrun's flags are used. Left out and no label: the oldest supported version is assumed."""
    notify: NotifySpec | None = None
    """Who is told when the run ends, fails or is restarted often. Left out: nobody."""
    local: LocalSpec = LocalSpec.model_construct()
    """Settings for ``--on local`` alone."""
    docker: DockerSpec = DockerSpec.model_construct()
    """Settings for ``--on docker``, and for ``--on hosts`` with ``runtime: docker``."""
    kubernetes: KubernetesSpec = KubernetesSpec.model_construct()
    """Settings for ``--on kubernetes`` alone."""
    hosts: HostsSpec = HostsSpec.model_construct()
    """Settings for ``--on hosts`` alone."""
    slurm: SlurmSpec = SlurmSpec.model_construct()
    """Settings for ``--on slurm`` alone. Inside an existing allocation nothing is submitted, so
    options of sbatch have no effect."""

    @model_validator(mode="before")
    @classmethod
    def _devices_are_processes(cls, keys: object) -> object:
        """One process for each device, as Lightning has it; or that many GPUs for the processes."""
        given = keys.get("devices") if isinstance(keys, dict) else None
        try:
            count = parse_devices(given).count if given is not None else None
        except NotAcceptedError:
            count = None  # the key's own check says so
        if count is None or not isinstance(keys, dict):
            return keys
        if keys.get("nproc_per_node") is None:
            return {**keys, "nproc_per_node": count}
        resources = keys.get("resources") or {}
        if isinstance(resources, dict) and resources.get("gpus") is None:
            return {**keys, "resources": {**resources, "gpus": count}}
        return keys

    @model_validator(mode="before")
    @classmethod
    def _own_disks_are_meant(cls, keys: object) -> object:
        """``checkpoint_dir: ephemeral`` says on each target what Kubernetes has a key for."""
        if not isinstance(keys, dict) or keys.get("checkpoint_dir") != EPHEMERAL:
            return keys
        section = keys.get("kubernetes") or {}
        section = {"checkpoint": EPHEMERAL, **section} if isinstance(section, dict) else section
        return {**keys, "checkpoint_dir": None, "kubernetes": section}

    @property
    def keeps_own_disks(self) -> bool:
        """Whether checkpoints are meant to be on each node's own disk."""
        return self.kubernetes.checkpoint == EPHEMERAL

    @property
    def is_elastic(self) -> bool:
        return self.nnodes.is_elastic

    @property
    def is_on_cpu(self) -> bool:
        """Whether workers are to see no GPU, even where there are some."""
        gpus = self.resources.gpus
        return gpus == 0 or (gpus is None and self.nproc_per_node == "cpu")

    @property
    def names_containers(self) -> bool:
        """Whether it names what only containers have: an image, code in one, or mounts."""
        return bool(self.image or self.code == IN_IMAGE or self.mounts)

    @property
    def uses_agent(self) -> bool:
        """Whether the node agent runs the workers, and not plain torchrun."""
        return self.engine != "torchrun"

    def without_agent(self) -> JobSpec:
        """The same job under plain torchrun; what only the agent has is dropped."""
        backend = None if self.rdzv.backend == "roster" else self.rdzv.backend
        rdzv = self.rdzv.model_copy(update={"backend": backend})
        return self.model_copy(update={"engine": "torchrun", "start": None, "rdzv": rdzv})
