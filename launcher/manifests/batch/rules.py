"""The rules of ``launcher check`` for batch scripts, and their breaches."""

from __future__ import annotations

import enum

from launcher.manifests.batch.script import BatchScript
from launcher.manifests.checks.rules import ERROR, WARNING, AnyRule, Breach


@enum.unique
class BatchRule(AnyRule):
    """Every rule of batch scripts."""

    SHEBANG = ERROR, "sbatch refuses a script whose first line names no interpreter"
    DOS_LINES = ERROR, "sbatch refuses a script with DOS line breaks"
    SBATCH_LATE = ERROR, "sbatch stops reading options at the first command: the line does nothing"
    SBATCH_VARIABLE = ERROR, "sbatch reads the line before any shell does: the $ stays as it is"
    FEWEST_NODES = WARNING, "Slurm counts the tasks for the fewest nodes, and gives no more of them"
    SRUN_MISSING = ERROR, "the script runs on the first node alone; only srun reaches the others"
    TASKS_WITH_TORCHRUN = ERROR, "each task starts all workers of its node: GPUs are shared by many"
    TASKS_WITHOUT_NODES = (
        WARNING,
        "Slurm may put several tasks on one node, and their workers share it",
    )
    TASK_PER_GPU = (
        WARNING,
        "only torchrun starts a process for each GPU; srun starts one for each task",
    )
    NNODES_NOT_NODES = ERROR, "torchrun waits for nodes that never come, or leaves some out"
    NNODES_IS_TASKS = ERROR, "torchrun waits for as many nodes as there are tasks, and times out"
    NPROC_NOT_GPUS = ERROR, "workers without a GPU fail or share; GPUs without a worker are idle"
    NO_ENDPOINT = ERROR, "torchrun does not read MASTER_ADDR: each node waits on its own loopback"
    NO_NODE_RANK = ERROR, "each node believes to be the first: they wait for each other for ever"
    TASK_VARIABLE_EARLY = ERROR, "the script's own shell fills it in, and there it is always 0"
    NODELIST_UNEXPANDED = ERROR, "the list is one word such as n[1-4]: what comes out is no host"
    ADDRESS_OF_EACH_NODE = ERROR, "each node names itself, so each waits for the others alone"
    ADDRESS_LOOPBACK = ERROR, "each node means itself by it, so each waits for the others alone"
    ADDRESS_OF_LOGIN_NODE = ERROR, "nothing of the job runs on the login node"
    ADDRESS_BY_HOSTNAME = WARNING, "it is what the node's own name resolves to: loopback or several"
    ADDRESS_UNORDERED = (
        WARNING,
        "tasks print in any order: the first line need not be the first node",
    )
    RANDOM_OF_EACH_NODE = ERROR, "each node draws a number of its own, and no two nodes meet"
    PORT_FIXED = WARNING, "two jobs on one node want the same port: one fails, or joins the other"
    RDZV_ID_FIXED = WARNING, "agents of a former start or of another job may join the group"
    NO_SIGNAL = (
        WARNING,
        "at the limit the training is killed, and loses what it did since its last save",
    )
    SIGNAL_UNTRAPPED = (
        ERROR,
        "the signal ends the script, and with it the job, without a checkpoint",
    )
    TRAP_LATE = (
        ERROR,
        "bash runs a trap only after its foreground command: the job is killed before",
    )
    SIGNAL_REACHES_NOBODY = ERROR, "without B: it goes to steps of srun, and the script starts none"
    SIGNAL_ENDS_TORCHRUN = ERROR, "torchrun handles SIGTERM and no such signal: it dies on the spot"
    NO_REQUEUE = WARNING, "the job ends at its limit; scontrol requeue is refused at some sites"
    NO_REQUEUE_WANTED = ERROR, "scontrol requeue is refused for a job with --no-requeue"
    LOG_OVERWRITTEN = (
        WARNING,
        "a requeued job begins its output file anew: the first start's is gone",
    )
    GPUS_HIDDEN = (
        WARNING,
        "each task sees its own GPUs alone: no direct copies between them for NCCL",
    )
    OMP_NUM_THREADS = WARNING, "torchrun sets it to 1; without torchrun each worker takes all cores"
    SLURM_UNSET = WARNING, "Slurm sets it only with that option; without, it is empty"


def hit_line(rule: BatchRule, script: BatchScript, line: int, what: str, fix: str) -> Breach:
    """A breach at a line; ``fix`` is what to write instead."""
    return Breach(rule=rule, where=f"{script.file}:{line}", line=line, what=what, fix=fix)
