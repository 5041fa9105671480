"""How many nodes, tasks and GPUs a step of a batch script has, where the script tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.manifests.batch.options import GivenOption, Options
from launcher.manifests.batch.script import BatchScript, Launch
from launcher.manifests.batch.shell import END, END_RUN, HERE, HERE_RUN, NODE, NODE_RUN
from launcher.manifests.batch.values import Scope, expand

NODE_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
TASK_COUNTS = ("SLURM_NTASKS", "SLURM_NPROCS")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Counts of one step; None where the script does not tell.

    ``tasks_at`` is the option that decides how many tasks a node has, ``gpus_at`` the same of GPUs.
    """

    nodes: int | None
    ntasks: int | None
    tasks: int | None
    gpus: int | None
    tasks_at: GivenOption | None
    tasks_name: str
    gpus_at: GivenOption | None
    numbers: dict[str, int]

    @property
    def is_single(self) -> bool:
        """Whether it is known to have one node."""
        return self.nodes == 1

    @property
    def is_multiple(self) -> bool:
        """Whether it is known to have several nodes."""
        return self.nodes is not None and self.nodes > 1

    def number(self, value: str) -> int | None:
        """A value as a number, where ``SLURM_*`` stand for this script's own options."""
        text = re.sub(
            f"[{HERE}{NODE}](\\w+){END}",
            lambda found: str(self.numbers.get(found[1], found[0])),
            value,
        )
        text = re.sub(f"^[{HERE_RUN}{NODE_RUN}]\\((.*)\\){END_RUN}$", r"$(\1)", text)
        if text.startswith("$(("):
            text = expand(text, Scope())
        return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def job_shape(script: BatchScript) -> Shape:
    """The shape of the whole job."""
    return _shape(script.options, {})


def step_shape(script: BatchScript, launch: Launch) -> Shape:
    """The shape of the step that a launch belongs to: srun's own options win.

    srun ignores its ``--ntasks-per-node``, with a warning, where the job has another number of
    tasks, which it finds in SLURM_NTASKS (seen with 22.05).
    """
    return _shape(script.options, launch.srun)


def _shape(job: Options, step: Options) -> Shape:
    base = _counts(job, None)
    if not step:
        return base
    if "ntasks" in step:
        job = {name: option for name, option in job.items() if name != "ntasks-per-node"}
        ntasks = base.number(step["ntasks"].value)
        if "nodes" not in step and ntasks is not None and ntasks < (base.nodes or 0):
            step = {**step, "nodes": step["ntasks"]}
    elif "ntasks-per-node" in step and base.ntasks is not None and base.nodes is not None:
        asked = _counts({**job, **step}, base.numbers)
        if asked.tasks is not None and asked.tasks * base.nodes != base.ntasks:
            step = {name: option for name, option in step.items() if name != "ntasks-per-node"}
    return _counts({**job, **step}, base.numbers)


def _counts(options: Options, known: dict[str, int] | None) -> Shape:
    """The counts; ``known`` are the numbers of the whole job where the options are a step's."""
    half = Shape(
        nodes=None,
        ntasks=None,
        tasks=None,
        gpus=None,
        tasks_at=None,
        tasks_name="",
        gpus_at=None,
        numbers=known or {},
    )

    def number(name: str) -> int | None:
        given = options.get(name)
        return None if given is None else half.number(given.value)

    nodes, ntasks, per_node = number("nodes"), number("ntasks"), number("ntasks-per-node")
    if "nodes" not in options and ntasks and per_node and ntasks % per_node == 0:
        nodes = ntasks // per_node
    if "nodes" not in options and ntasks == 1:
        nodes = 1
    tasks, tasks_at = per_node, options.get("ntasks-per-node")
    if tasks_at is None and "ntasks" in options:
        tasks_at = options["ntasks"]
        tasks = ntasks // nodes if ntasks and nodes and ntasks % nodes == 0 else None
    elif tasks_at is None and "nodes" in options and "ntasks-per-gpu" not in options:
        tasks = 1
    gpus, gpus_at = _gpus(options, nodes, tasks, half)
    if ntasks is None and nodes and per_node:
        ntasks = nodes * per_node
    if known is None:
        found = {
            **dict.fromkeys(NODE_COUNTS, nodes),
            **dict.fromkeys(TASK_COUNTS, ntasks),
            "SLURM_NTASKS_PER_NODE": per_node,
            "SLURM_GPUS_ON_NODE": gpus,
            "SLURM_GPUS_PER_NODE": number("gpus-per-node"),
            "SLURM_CPUS_PER_TASK": number("cpus-per-task"),
        }
        known = {name: count for name, count in found.items() if count is not None}
    return Shape(
        nodes=nodes,
        ntasks=ntasks,
        tasks=tasks,
        gpus=gpus,
        tasks_at=tasks_at,
        tasks_name="--ntasks-per-node" if "ntasks-per-node" in options else "--ntasks",
        gpus_at=gpus_at,
        numbers=known,
    )


def _gpus(
    options: Options, nodes: int | None, tasks: int | None, half: Shape
) -> tuple[int | None, GivenOption | None]:
    """The GPUs of a node, and the option that says so."""
    if given := options.get("gpus-per-node"):
        return half.number(given.value.split(":")[-1]), given
    if (given := options.get("gres")) and "gpu" in given.value:
        counts = [_gres(part) for part in given.value.split(",") if part.startswith("gpu")]
        return sum(counts), given
    if given := options.get("gpus-per-task"):
        each = half.number(given.value.split(":")[-1])
        return (each * tasks if each and tasks else None), given
    if given := options.get("gpus"):
        total = half.number(given.value.split(":")[-1])
        return (total // nodes if total and nodes and total % nodes == 0 else None), given
    return None, None


def _gres(part: str) -> int:
    last = part.split("(")[0].split(":")[-1]
    return int(last) if last.isdigit() else 1
