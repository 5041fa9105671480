"""Rules for how the training is started: by srun or not, how often, on how many GPUs."""

from __future__ import annotations

import re

from launcher.manifests.batch.rules import BatchRule, hit_line
from launcher.manifests.batch.script import PYTHON, SRUN, TORCHRUN, BatchScript, Launch
from launcher.manifests.batch.shape import TASK_COUNTS, Shape, job_shape, step_shape
from launcher.manifests.batch.submitting import assigns
from launcher.manifests.batch.values import readable, variables_of
from launcher.manifests.checks.rules import Breaches

WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
BINDS = re.compile(r"(verbose,|v,|quiet,|q,)*(single|per_task|closest|map_gpu|mask_gpu)\b")


def check_start(script: BatchScript, launch: Launch) -> Breaches:
    """One launch, with the options of its step."""
    shape = step_shape(script, launch)
    if launch.program == TORCHRUN:
        yield from _check_srun(script, launch, shape)
        yield from _check_tasks(script, launch, shape)
        yield from _check_nnodes(script, launch, shape)
        yield from _check_nproc(script, launch, shape)
    elif launch.program == PYTHON and launch.starter == SRUN:
        yield from _check_task_per_gpu(script, launch, shape)
    yield from _check_visible(script, launch, shape)
    yield from _check_threads(script, launch, shape)


def _check_srun(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    starts_here = not launch.starter and not launch.is_conditional
    if shape.is_multiple and starts_here and not script.has_steps:
        what = f"torchrun without srun, in a job of {shape.nodes} nodes"
        fix = "srun --ntasks-per-node=1 torchrun ..."
        yield hit_line(BatchRule.SRUN_MISSING, script, launch.line, what, fix)


def is_per_node(launch: Launch) -> bool:
    """Whether srun starts it on one chosen node, as scripts with a loop over the nodes do."""
    return launch.starter != SRUN or bool({"nodelist", "relative", "r"} & set(launch.srun))


def nnodes_of(launch: Launch) -> str:
    """``--nnodes`` or PET_NNODES; torchrun's default is 1."""
    if "standalone" in launch.options:
        return "1"
    given = launch.options.get("nnodes")
    return launch.scope.values.get("PET_NNODES", "1") if given is None else given.value


def nproc_of(launch: Launch) -> str:
    """``--nproc-per-node`` or PET_NPROC_PER_NODE; torchrun's default is 1."""
    given = launch.options.get("nproc-per-node")
    return launch.scope.values.get("PET_NPROC_PER_NODE", "1") if given is None else given.value


def _counts_tasks(launch: Launch, shape: Shape) -> bool:
    """Whether each task is meant as a node of torchrun, with one worker."""
    value = nnodes_of(launch)
    counts = bool(variables_of(value) & {*TASK_COUNTS}) or shape.number(value) == shape.ntasks
    return counts and shape.number(nproc_of(launch)) == 1


def _check_tasks(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    if launch.starter != SRUN or shape.tasks_at is None or _counts_tasks(launch, shape):
        return
    at, name = shape.tasks_at, shape.tasks_name
    fix = f"{name}=1 and --cpus-per-task for all workers of the node"
    if shape.tasks is not None and shape.tasks > 1:
        what = f"{name}={at.value} with torchrun inside: {shape.tasks} torchruns on each node"
        if "ntasks-per-node" in launch.srun and at not in launch.srun.values():
            what += ", as srun ignores its own --ntasks-per-node beside it"
        if name == "--ntasks":
            fix = f"--ntasks-per-node=1 instead of --ntasks={at.value}"
        yield hit_line(BatchRule.TASKS_WITH_TORCHRUN, script, at.line, what, fix)
    elif shape.nodes is None and (shape.ntasks or 0) > 1 and "nodes" not in script.options:
        what = f"--ntasks={at.value} without --nodes, with torchrun inside"
        fix = f"--nodes={shape.ntasks} --ntasks-per-node=1"
        yield hit_line(BatchRule.TASKS_WITHOUT_NODES, script, at.line, what, fix)


def _check_nnodes(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    value = nnodes_of(launch)
    given = launch.options.get("nnodes")
    line = launch.line if given is None else given.line
    if variables_of(value) & {*TASK_COUNTS} and not _counts_tasks(launch, shape):
        ntasks = shape.number(value)
        if ntasks is not None and shape.nodes is not None and ntasks != shape.nodes:
            what = f"--nnodes={readable(value)}, which is {ntasks}, on {shape.nodes} nodes"
            fix = "--nnodes=$SLURM_NNODES"
            yield hit_line(BatchRule.NNODES_IS_TASKS, script, line, what, fix)
        return
    low, _, high = value.partition(":")
    counts = [shape.number(part) for part in (low, high or low)]
    if shape.nodes is None or None in counts or is_per_node(launch):
        return
    if given is None and launch.is_open:
        return
    # Steps of one node each, side by side, are one group too.
    nodes = {shape.nodes, job_shape(script).nodes or shape.nodes}
    fits = any((counts[0] or 0) <= one <= (counts[1] or 0) for one in nodes)
    if not fits and not _counts_tasks(launch, shape):
        found = f"--nnodes={readable(value)}" if given else f"--nnodes is {readable(value)}"
        if "standalone" in launch.options:
            found = "--standalone"
        what = f"{found} on {shape.nodes} node{'' if shape.nodes == 1 else 's'}"
        fix = "--nnodes=$SLURM_NNODES, and the same --rdzv-endpoint on all nodes"
        yield hit_line(BatchRule.NNODES_NOT_NODES, script, line, what, fix)


def _check_nproc(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    workers, gpus = shape.number(nproc_of(launch)), shape.gpus
    tasks = shape.tasks if launch.starter == SRUN else 1
    given, at = launch.options.get("nproc-per-node"), shape.gpus_at
    if workers is None or not gpus or tasks != 1 or workers == gpus:
        return
    if given is None and launch.is_open:
        return
    line = launch.line if given is None else given.line
    found = f"--nproc-per-node={workers}" if given else "torchrun without --nproc-per-node"
    where = "" if at is None else f" (line {at.line})"
    what = f"{found}: {workers} worker{'' if workers == 1 else 's'} for {gpus} GPUs{where}"
    yield hit_line(BatchRule.NPROC_NOT_GPUS, script, line, what, f"--nproc-per-node={gpus}")


def _check_task_per_gpu(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    distributed = shape.is_multiple or any(assigns(script, name) for name in WORLD)
    if shape.tasks == 1 and (shape.gpus or 0) > 1 and distributed:
        what = f"srun starts one python on each node, for {shape.gpus} GPUs"
        fix = f"#SBATCH --ntasks-per-node={shape.gpus}, or srun torchrun --nproc-per-node=..."
        yield hit_line(BatchRule.TASK_PER_GPU, script, launch.line, what, fix)


def _check_visible(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    options = {**script.options, **launch.srun}
    each, bind = options.get("gpus-per-task"), options.get("gpu-bind")
    several = (shape.tasks or 0) > 1
    if launch.starter != SRUN or (bind is not None and bind.value == "none"):
        return
    if each is not None and several:
        what = f"--gpus-per-task={each.value} with {shape.tasks} tasks on each node"
        fix = f"--gpus-per-node={shape.gpus or 'N'} instead, or --gpu-bind=none beside it"
        yield hit_line(BatchRule.GPUS_HIDDEN, script, each.line, what, fix)
    elif bind is not None and BINDS.match(bind.value) and (several or (shape.gpus or 0) > 1):
        what = f"--gpu-bind={bind.value}"
        yield hit_line(BatchRule.GPUS_HIDDEN, script, bind.line, what, "--gpu-bind=none")


def _check_threads(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    if "OMP_NUM_THREADS" in script.text or script.others:
        return
    cores = "$SLURM_CPUS_PER_TASK" if "cpus-per-task" in script.options else "8"
    if launch.program == TORCHRUN:
        workers = shape.number(nproc_of(launch))
        many = workers is None or workers > 1
        many = many and not (launch.is_open and "nproc-per-node" not in launch.options)
        if "cpus-per-task" in script.options:
            cores = f"$((SLURM_CPUS_PER_TASK / {workers or shape.gpus or 'WORKERS'}))"
    else:
        is_bound = "cpus-per-task" in {**script.options, **launch.srun}
        many = launch.starter == SRUN and (shape.tasks or 0) > 1 and not is_bound
    if many:
        fix = f"export OMP_NUM_THREADS={cores}"
        what = "several workers on a node, and no OMP_NUM_THREADS"
        yield hit_line(BatchRule.OMP_NUM_THREADS, script, launch.line, what, fix)
