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
    str,
    matching(
        "[0-9]+[KMGT]?",
        "a memory as sbatch takes it: megabytes, or with a unit, such as 64G",
        WHOLE,
    ),
]
Option = Annotated[str, matching(r"--?[A-Za-z].*", "an option of sbatch, such as --mail-type=END")]


class SlurmSpec(Section):
    """Only for ``--on slurm``: jobs of a Slurm cluster. Most keys are named as sbatch's options."""

    kind: Annotated[Kind | None, Field(examples=["array"])] = None
    """The Slurm jobs of a run. ``allocation``: one job with all nodes; a lost node is missing until
    the job is requeued. ``array``: each node is an element of a job array, which Slurm queues,
    requeues and replaces by itself. Left out: ``array`` for an elastic job, else ``allocation``."""
    partition: Annotated[Text | None, Field(examples=["gpu"])] = None
    """The partition, or several separated by commas. Left out: the cluster's default."""
    account: Annotated[Text | None, Field(examples=["ml"])] = None
    """The account that pays. Left out: the user's default account."""
    qos: Annotated[Text | None, Field(examples=["normal"])] = None
    """The quality of service."""
    time: Annotated[TimeLimit | None, Field(examples=["8:00:00"])] = None
    """The time limit of one start. In its last seconds (``stop_grace_s`` + 30) the job commits a
    checkpoint; then it is requeued and goes on. Left out: the partition's limit."""
    constraint: Annotated[Text | None, Field(examples=["a100&ib"])] = None
    """Features that the nodes must have."""
    reservation: Annotated[Text | None, Field(examples=["course"])] = None
    """The reservation to run in."""
    exclude: Annotated[Text | None, Field(examples=["n[7-8]"])] = None
    """Nodes that the job must not get."""
    gres: Annotated[Text | None, Field(examples=["gpu:a100:8"])] = None
    """Generic resources of each node, as sbatch writes them; not beside ``gpus_per_node``."""
    gpus_per_node: Annotated[Text | None, Field(examples=["a100:8", "8"])] = None
    """GPUs of each node: a number, or a type and a number. Left out: ``resources.gpus``."""
    cpus_per_task: Annotated[Count | None, Field(examples=[64])] = None
    """CPU cores of each node's one task, the agent with its workers. Left out:
    ``resources.cpus``."""
    mem: Annotated[Memory | None, Field(examples=["480G"])] = None
    """Memory of each node. Left out: ``resources.memory``, else the partition's default."""
    exclusive: Annotated[Flag, Field(examples=[True])] = False
    """Whether no other job may use the nodes."""
    requeue: Annotated[Flag, Field(examples=[False])] = True
    """Whether the job goes back into the queue after its time limit, a preemption or a lost node,
    and goes on from its last checkpoint."""
    container: Annotated[ContainerRuntime | None, Field(examples=["pyxis"])] = None
    """What starts the job's ``image``: ``pyxis`` (srun's own containers, by enroot) or
    ``apptainer``. Left out: no container, and ``image`` is not used."""
    image: Annotated[Text | None, Field(examples=["/shared/images/train.sqsh"])] = None
    """The image as the container runtime names it, or its file. Left out: the job's ``image``."""
    python: Annotated[Text | None, Field(examples=["/opt/venv/bin/python"])] = None
    """The nodes' Python that has torch; with ``container``, the container's. Left out: the
    launcher's own if it has torch, else ``python3`` of the PATH; in a container ``python3``."""
    setup: tuple[Text, ...] = Field(default=(), examples=[["module load cuda/12.4"]])
    """Shell lines that run first at each start of the job."""
    extra: tuple[Option, ...] = Field(default=(), examples=[["--mail-type=END"]])
    """More options for sbatch, passed on unchanged. Options that the launcher sets are refused."""
