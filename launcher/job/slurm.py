"""The section ``slurm`` of a job file: what Slurm must be told, and no other target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.job.types import WHOLE, Count, Flag, Section, Text, matching

Kind = Literal["allocation", "array"]
ContainerRuntime = Literal["pyxis", "apptainer"]
TimeLimit = Annotated[
    str,
    matching(
        r"([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}|UNLIMITED",
        "a time as sbatch takes it: minutes, HH:MM:SS, D-HH, D-HH:MM:SS or UNLIMITED",
        WHOLE,
    ),
]
Memory = Annotated[
    str, matching("[0-9]+[KMGT]?", "a memory as sbatch takes it: megabytes, or such as 64G", WHOLE)
]
Option = Annotated[str, matching(r"--?[A-Za-z].*", "an option of sbatch, such as --mail-type=END")]


class SlurmSpec(Section):
    """Only for ``--on slurm``: jobs of a Slurm cluster, by sbatch's own names where it has one."""

    kind: Annotated[Kind | None, Field(examples=["array"])] = None
    """What the nodes are made of. ``allocation``: one job with all nodes; a node that is lost is
    missing until the job is requeued. ``array``: each node is an element of a job array, which
    Slurm queues, requeues and replaces by itself. Left out: ``array`` for an elastic job, else
    ``allocation``."""
    partition: Annotated[Text | None, Field(examples=["gpu"])] = None
    """The partition, or several with commas. Left out: the cluster's default."""
    account: Annotated[Text | None, Field(examples=["ml"])] = None
    """Who pays. Left out: the user's default account."""
    qos: Annotated[Text | None, Field(examples=["normal"])] = None
    """The quality of service."""
    time: Annotated[TimeLimit | None, Field(examples=["8:00:00"])] = None
    """The time limit of one start. A job that reaches it commits a checkpoint, is requeued and
    goes on. Left out: the partition's."""
    constraint: Annotated[Text | None, Field(examples=["a100&ib"])] = None
    """Features that the nodes must have."""
    reservation: Annotated[Text | None, Field(examples=["course"])] = None
    """The reservation to run in."""
    exclude: Annotated[Text | None, Field(examples=["n[7-8]"])] = None
    """Nodes that are not taken."""
    gres: Annotated[Text | None, Field(examples=["gpu:a100:8"])] = None
    """Generic resources of each node, by sbatch's own words. Either this or ``gpus_per_node``."""
    gpus_per_node: Annotated[Text | None, Field(examples=["a100:8", "8"])] = None
    """GPUs of each node, with a type where wanted. Left out: ``resources.gpus``."""
    cpus_per_task: Annotated[Count | None, Field(examples=[64])] = None
    """Cores of each node, whose only task is the agent. Left out: ``resources.cpus``."""
    mem: Annotated[Memory | None, Field(examples=["480G"])] = None
    """Memory of each node. Left out: ``resources.memory``, else the partition's default."""
    exclusive: Annotated[Flag, Field(examples=[True])] = False
    """Whether nobody else gets a part of the nodes."""
    requeue: Annotated[Flag, Field(examples=[False])] = True
    """Whether the job goes back into the queue after its time limit, a preemption or a lost node,
    and goes on from its last checkpoint."""
    container: Annotated[ContainerRuntime | None, Field(examples=["pyxis"])] = None
    """What starts the job's ``image``: ``pyxis`` (srun's own containers, by enroot) or
    ``apptainer``. Left out: no container."""
    image: Annotated[Text | None, Field(examples=["/shared/images/train.sqsh"])] = None
    """The image as the container runtime takes it, a file too. Left out: the job's ``image``."""
    python: Annotated[Text | None, Field(examples=["/opt/venv/bin/python"])] = None
    """The Python of the nodes that has torch; in a container the container's. Left out: the
    launcher's own, in a container ``python3``."""
    setup: tuple[Text, ...] = Field(default=(), examples=[["module load cuda/12.4"]])
    """Lines of shell that each start of the job runs first."""
    extra: tuple[Option, ...] = Field(default=(), examples=[["--mail-type=END"]])
    """Options for sbatch, word for word. Those that the launcher sets itself are refused."""
