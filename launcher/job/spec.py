"""JobSpec: what the user asked for, validated; the planner's input.

The text below each field is its documentation: the JSON Schema, the editor's help and
docs/job-file.md are made from it. ``None`` means "the planner decides".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from launcher.contract.agent_settings import DETECTION_LIMIT_S, GPU_FREE_LIMIT_S, HANG_MIN_S
from launcher.job.kubernetes import KubernetesSpec
from launcher.job.refused import NotAcceptedError
from launcher.job.slurm import SlurmSpec
from launcher.job.storage import MOUNT, MOUNT_WORDS, split_mount
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
from launcher.job.values import IN_IMAGE, NodeRange, parse_devices, parse_quantity_bytes


class RdzvConfSpec(Section):
    """What a rendezvous may be told, by torchrun's names: a closed set, because torchrun ignores
    names that it does not know. ``is_host`` and ``rank`` are left to the launcher."""

    join_timeout: Seconds | None = None
    """Seconds that a node waits for the group to be complete."""
    last_call_timeout: Annotated[Seconds | None, Field(examples=[5])] = None
    """Seconds that a group with the smallest number of nodes waits for more of them."""
    close_timeout: Seconds | None = None
    """Seconds that a node waits for the rendezvous to close."""
    heartbeat_timeout: Seconds | None = None
    """Seconds that one sign of life may take."""
    keep_alive_interval: Seconds | None = None
    """Seconds between two signs of life of a node (torch >= 2.7)."""
    keep_alive_max_attempt: Annotated[int, Field(strict=True, ge=1)] | None = None
    """After how many missed signs of life a node counts as lost (torch >= 2.7)."""
    read_timeout: Annotated[Seconds | None, Field(examples=[600])] = None
    """Seconds that a node waits for the store; must outlast the slowest pull of an image."""
    protocol: Literal["http", "https"] | None = None
    """How etcd is spoken to, with the backend ``etcd-v2``."""
    ssl_cert: Text | None = None
    """The client certificate's path in the container, with the backend ``etcd-v2``."""
    ssl_cert_key: Text | None = None
    """The path of that certificate's key, with the backend ``etcd-v2``."""
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
    """``roster``: the node agent's own, which acts on a lost node within seconds. ``static``: a
    group of fixed size, by address and node rank; when a node is lost, all are started again.
    Only with ``engine: torchrun``: ``c10d``, torch's own elastic rendezvous without any service,
    and ``etcd-v2``, elastic by an etcd server. Left out: ``roster`` under the agent; under torchrun
    ``static`` for a fixed number of nodes above one, else ``c10d``."""
    port: Annotated[Port | None, Field(examples=[29400])] = None
    """The port at which the nodes meet, with every backend but ``etcd-v2``. Left out: a free one
    where the launcher can find one, else torchrun's own (29500 for ``static``, else 29400)."""
    endpoint: Annotated[Endpoint | None, Field(examples=["etcd.internal:2379"])] = None
    """Where the etcd server is, with ``etcd-v2``. With the others one of the nodes is the place,
    and the launcher says which."""
    id: Annotated[ScalarText | None, Field(min_length=1, examples=["digits-a"])] = None
    """The name of the rendezvous. Left out: made from the run id and the attempt, which is what
    keeps two runs apart."""
    conf: RdzvConfSpec = Field(
        default=RdzvConfSpec.model_construct(), examples=[{"last_call_timeout": 5}]
    )
    """Settings of the rendezvous, as ``torchrun --rdzv-conf`` names them; what is left out is
    torchrun's default, or the launcher's where that one is known to fail. The agent's ``roster``
    takes ``join_timeout``, ``last_call_timeout`` and ``read_timeout`` of them, its ``static`` none;
    the others are torchrun's alone."""


class MountSpec(Section):
    """A folder or file of the host, made visible in the container."""

    source: Annotated[HostPath, Field(examples=["./data"])]
    """The path on the host, absolute or relative to the folder where the launcher is called."""
    target: Annotated[MountTarget, Field(examples=["/data"])]
    """The absolute path in the container; not ``/launcher`` or below, which is the launcher's."""
    read_only: Annotated[Flag, Field(examples=[True])] = False
    """Whether the container may only read it."""

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        return split_mount(value)


class ResourcesSpec(Section):
    """What one node gets."""

    cpus: Annotated[Cores | None, Field(examples=[4])] = None
    """CPU cores, fractions included. Left out: no limit."""
    memory: Annotated[Quantity | None, Field(examples=["8Gi"])] = None
    """Memory, as a Kubernetes quantity. Left out: no limit."""
    shm: Annotated[Quantity, Field(examples=["2Gi"])] = "1Gi"
    """Size of /dev/shm, through which data loader workers and NCCL pass their data. A container
    has 64 MB of it unless told otherwise, which is too little for both."""
    gpus: Annotated[Count | None, Field(examples=[8])] = None
    """GPUs. Left out: as many as ``nproc_per_node`` needs; 0: none, even where there are some. A
    target that has fewer refuses the job."""
    rdma: Annotated[Rdma, Field(examples=[True])] = False
    """Whether the node gets the host's RDMA devices (with the right to lock memory), or how many
    of them on a target that counts them."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_quantity_bytes(self.memory)

    @property
    def shm_bytes(self) -> int:
        return parse_quantity_bytes(self.shm)


class HealthSpec(Section):
    """Where the agent answers ``/healthz`` and ``/metrics`` (Prometheus text) over HTTP."""

    address: Annotated[ListenAddress, Field(examples=["0.0.0.0"])] = "127.0.0.1"
    """The address to listen on; the default is reached from inside the node alone."""
    port: Annotated[Port | None, Field(examples=[9400])] = None
    """The port. Left out: no health server. Nodes on one machine's network need one each, so that
    with ``--on local`` only a single node can have it."""


class AgentSpec(Section):
    """Settings of the node agent (``engine: agent``). Leave them out unless they do not fit."""

    detection_limit_s: Annotated[Limit, Field(examples=[10, 1.5])] = DETECTION_LIMIT_S
    """Seconds of silence after which a node counts as lost. Below 10, a CPU that many share or a
    lossy network may be taken for a lost node."""
    preload: tuple[Text, ...] = Field(default=(), examples=[["transformers"]])
    """With ``start: fork``, modules that are imported once, before the workers are forked. They
    must start neither threads nor CUDA. torch, and Fabric where the script uses it, are
    imported anyway."""
    same_failure_limit: Annotated[int, Field(strict=True, ge=1)] = 3
    """After how many equal failures in a row, without a step of progress, the run ends though
    ``max_restarts`` is not used up."""
    hang_min_s: Annotated[Count, Field(examples=[120])] = HANG_MIN_S
    """Seconds without a step, at least, before idle workers count as hanging and are started
    again; 0 switches that off. The limit is learned above it: ten times the longest step."""
    hang_max_s: Annotated[Seconds | None, Field(examples=[3600])] = None
    """Seconds without a step after which even workers that compute count as hanging. Left out: 1800
    for a job with ``max_restarts``, else never, as an evaluation that takes so long would end the
    run."""
    gpu_free_limit_s: Seconds = GPU_FREE_LIMIT_S
    """Seconds that a restart waits for the dead workers' GPU memory to become free."""
    health: HealthSpec = HealthSpec.model_construct()
    """The agent's own HTTP server."""
    in_image: bool | None = None
    """Whether nodes start the agent that their image holds, as the images of this project do. Left
    out: on Docker the image's label decides, on Kubernetes its name (``fabric-train``). ``false``
    brings the launcher's own agent into any image, as always on hosts."""


class NotifySpec(Section):
    """Who is told of the run, by the launcher that follows it (``run``, also with ``--detach``).
    Nodes, manifests of ``render`` and ``launcher node`` tell nobody. One that fails or takes longer
    than 10 s is given up, and that is told; the run has its outcome before."""

    command: Annotated[Text | None, Field(examples=['mail -s "$NOTICE_TEXT" me < /dev/null'])] = (
        None
    )
    """A line for ``sh``, run where the launcher was called. ``NOTICE_TEXT`` is one line about the
    run, ``NOTICE_JSON`` what the webhook gets. It has the launcher's environment, secrets too."""
    webhook: Annotated[Url | None, Field(examples=["https://chat.internal/hooks/a"])] = None
    """An address that gets a JSON object by POST: ``text`` (the line, as chats want it), ``event``
    (end or restarts), ``run_id``, ``job``, ``target``, ``state``, ``reason``, ``detail``,
    ``verdict``, ``exit_code``, ``duration_s`` and ``restarts`` by cause. It stays in the run's
    folder: call a secret one by ``command``."""
    when: Annotated[Literal["end", "failure"], Field(examples=["failure"])] = "end"
    """``end``: at each end of a run. ``failure``: only where it failed."""
    restarts: Annotated[Count | None, Field(examples=[3])] = None
    """Tell too, once, as soon as workers or nodes were started again so many times; on Kubernetes
    nodes alone."""


class LocalSpec(Section):
    """Only for ``--on local``: processes on this machine, without a container."""

    python: Annotated[HostPath | None, Field(examples=[".venv/bin/python"])] = None
    """The interpreter that has torch. Left out: the one that runs the launcher, or ``python3`` of
    the PATH where only that one has torch."""


class DockerSpec(Section):
    """Only for ``--on docker``: containers on this machine."""

    runtime: Annotated[Text | None, Field(examples=["nvidia"])] = None
    """The container runtime, by the name that the engine knows it by. Left out: the engine's
    default."""
    labels: Annotated[Pairs, AsPairs(Label, ScalarText)] = Field(
        default=(), examples=[{"team": "vision"}]
    )
    """Labels of your own for the containers; names that start with ``launcher.`` are taken."""
    extra_hosts: Annotated[Pairs, AsPairs(Text, Text)] = Field(
        default=(), examples=[{"data.internal": "10.0.0.7"}]
    )
    """Host names that the containers shall know, each with its IP address or ``host-gateway``."""


class HostsSpec(Section):
    """Only for ``--on hosts``: machines that are reached over SSH."""

    inventory: Annotated[HostPath | None, Field(examples=["hosts.yaml"])] = None
    """Which machines: a hosts.yaml, a hostfile, or names such as ``gpu[1-4]``. ``--hosts`` on the
    command line wins."""
    runtime: Annotated[Literal["docker", "python"], Field(examples=["python"])] = "docker"
    """``docker``: each node is a container of ``image``. ``python``: each node runs in the host's
    own Python, on a copy of the files of the folder where the launcher is called (of its git
    repository, without what git ignores)."""
    python: Annotated[HostPath | None, Field(examples=["/opt/venv/bin/python"])] = None
    """With ``runtime: python``, the interpreter on the hosts that has torch. Left out: ``python3``.
    ``python`` in the inventory wins."""


class JobSpec(Section):
    """A job file: what to run, on how many nodes, with which resources. Keys are spelled as
    torchrun and Kubernetes spell them."""

    model_config = ConfigDict(title="Job file")

    name: Annotated[JobName, Field(examples=["digits"])]
    """The job's name, from which runs, containers and Kubernetes objects get theirs. A lower-case
    letter, then lower-case letters, digits and ``-``, at most 40 characters: then no name made
    from it is longer than Kubernetes allows."""
    image: Annotated[Image | None, Field(examples=["ghcr.io/me/train:1.4"])] = None
    """The container image. It needs torch and nothing of this project. Left out: the image that
    ``make image`` builds, ``fabric-train:cuda`` or ``fabric-train:cpu`` as the machine is. A job
    that names an image runs in containers of this machine, if no target is named."""
    command: Annotated[
        Command, Field(examples=[["-m", "train", "--epochs", 3], "train.py --lr 0.1"])
    ]
    """What torchrun runs: a script path or ``-m`` and a module, then its arguments. A list of
    words, or one text that is split as a shell splits it. Nothing else of a shell: variables stay
    as they are written, and ``&&``, ``|``, ``>`` or ``;`` without quotes are refused. Without
    ``torchrun`` and ``python``: the launcher starts those. A script that is not there, where that
    can be seen before the start, is refused (exit code 2)."""
    code: Annotated[Code | None, Field(examples=["image", "."])] = None
    """The folder of the training code, which nodes see as their working folder, relative to where
    the launcher is called; or ``image``: the image holds the code. Left out, the launcher looks
    there for the script or, with ``-m``, the module. If it is found, the code is the git repository
    around it without what git ignores, or, without a repository, the folder that it is in. If it is
    not found, the image holds the code. ``.launcherignore`` in the code's folder, written as a
    ``.gitignore`` is, names what else stays behind. With ``--on local`` and ``--on docker`` the
    folder itself is used, elsewhere a copy of at most 100 MiB. Only with ``--on kubernetes`` also
    ``{git: URL, ref: COMMIT}``, with ``secret`` for a Secret with the key and ``image`` for an
    image that has git: then each pod fetches it, and ``workdir`` is a folder in it."""
    nnodes: Annotated[Nodes, Field(examples=[2, "1:4"])] = NodeRange(1, 1)
    """How many nodes: a number, or ``MIN:MAX`` for an elastic job, which is started on MAX nodes
    and goes on while MIN are left. On one machine, more of them than its cores and memory can
    start are refused."""
    nproc_per_node: Annotated[Processes, Field(examples=[8, "gpu"])] = "auto"
    """Processes per node: a number; ``gpu``, one for each GPU; ``cpu``, one for each core, without
    GPUs; ``auto``, ``gpu`` where there are GPUs, else ``cpu``."""
    devices: Annotated[DeviceChoice | None, Field(examples=[2, [1, 3], "free:2"])] = None
    """Which GPUs of each machine, as people write them: ``2`` of them, ``-1`` or ``auto`` for all,
    ``[1, 3]`` or ``"1,3"`` for these, ``"1,"`` for this one, ``free:2`` for two that no process
    uses. There is one process for each, unless ``nproc_per_node`` says otherwise; without GPUs a
    number is that of processes. Nodes of one machine share them out. A scheduler gives out numbers
    of GPUs, and no ids."""
    rdzv: RdzvSpec = Field(
        default=RdzvSpec.model_construct(),
        examples=[{"port": 29400, "conf": {"last_call_timeout": 5}}],
    )
    """How the nodes find each other."""
    max_restarts: Annotated[Count, Field(examples=[3])] = 0
    """How many times the workers are started again after a failure. Under the agent only the
    workers' own failures count, over the whole run; a lost node does not."""
    engine: Annotated[Literal["torchrun", "agent"] | None, Field(examples=["torchrun"])] = None
    """What starts and watches the workers on each node. ``torchrun``: torch's own command, with
    corrected settings. ``agent``: torch's elastic agent inside this project's supervisor, which
    also acts on lost nodes, hangs and preemption. Left out: ``agent``.
    ``LAUNCHER_ENGINE=torchrun`` in the launcher's environment switches it off for every job."""
    start: Annotated[Literal["fresh", "fork"] | None, Field(examples=["fork"])] = None
    """How the agent starts workers. ``fresh``: a new interpreter each. ``fork``: from a process
    that has imported torch already, which makes starts and restarts several times faster; where
    that is not possible the agent says why and starts fresh ones. Left out: ``fresh``."""
    agent: AgentSpec = Field(
        default=AgentSpec.model_construct(), examples=[{"detection_limit_s": 5}]
    )
    """Settings of the node agent."""
    checkpoint_dir: Annotated[HostPath | None, Field(examples=["./checkpoints/digits"])] = None
    """Where checkpoints are kept and resumed from, relative to the folder where the launcher is
    called; outlives the run. The script finds it as ``CHECKPOINT_DIR``. Left out: a folder of the
    run, so that every run starts from nothing."""
    env: Annotated[Pairs, AsPairs(Variable, ScalarText)] = Field(
        default=(), examples=[{"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4}]
    )
    """Variables for the workers, value by value as written: ``1.10`` stays ``1.10``, ``NO`` stays
    ``NO``. What torchrun or the launcher sets (``RANK``, ``MASTER_ADDR``, ``PET_*``,
    ``TORCHELASTIC_*``, ``LAUNCHER_*``, ``RUN_DIR``, ``CHECKPOINT_DIR`` ...) is refused."""
    secrets: tuple[Variable, ...] = Field(
        default=(),
        examples=[["WANDB_API_KEY"]],
        json_schema_extra={"errorMessage": "a list of variables' names"},
    )
    """Names of variables that are passed through from the launcher's own environment. Their
    values are never in this file, in the plan, in a log or on the screen."""
    mounts: tuple[Annotated[MountSpec, OrText(MOUNT, MOUNT_WORDS)], ...] = Field(
        default=(), examples=[["./data:/data:ro", {"source": "/scratch", "target": "/scratch"}]]
    )
    """Folders or files of the host that the containers see; each either ``source:target``,
    ``source:target:ro`` or the keys below."""
    workdir: Annotated[Text | None, Field(examples=["/workspace"])] = None
    """The working folder of the workers: a path in the container, or with ``--on local`` on this
    machine, relative to the folder where the launcher is called. Left out: the image's own."""
    resources: ResourcesSpec = ResourcesSpec.model_construct()
    """What one node gets. ``cpus``, ``memory`` and ``shm`` do not bind ``--on local``, whose
    processes use the machine as it is."""
    stop_grace_s: Annotated[Seconds, Field(examples=[120])] = 30
    """Seconds that the workers have between the request to stop and the kill, for their last
    checkpoint."""
    torch_version: Annotated[TorchVersion | None, Field(examples=["2.10", "2.4.1"])] = None
    """The torch in the image, where the image's label does not say it; decides which of
    torchrun's flags may be used. Left out and no label: the oldest supported one is assumed."""
    notify: NotifySpec | None = None
    """Who is told when the run ends, fails or is restarted often. Left out: nobody."""
    local: LocalSpec = LocalSpec.model_construct()
    """Settings for ``--on local`` alone."""
    docker: DockerSpec = DockerSpec.model_construct()
    """Settings for ``--on docker`` alone."""
    kubernetes: KubernetesSpec = KubernetesSpec.model_construct()
    """Settings for ``--on kubernetes`` alone."""
    hosts: HostsSpec = HostsSpec.model_construct()
    """Settings for ``--on hosts`` alone."""
    slurm: SlurmSpec = SlurmSpec.model_construct()
    """Settings for ``--on slurm`` alone."""

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
