"""The rules of ``launcher check`` for batch scripts, and their breaches."""

from __future__ import annotations

import enum

from launcher.manifests.batch.script import BatchScript
from launcher.manifests.checks.rules import ERROR, WARNING, AnyRule, Breach


@enum.unique
class BatchRule(AnyRule):
    """Every rule of batch scripts: what makes a job hang, or waste its nodes."""

    SBATCH_LATE = ERROR, "sbatch stops reading options at the first command: the line does nothing"
    SRUN_MISSING = ERROR, "the script runs on the first node alone; only srun reaches the others"
    TASKS_WITH_TORCHRUN = ERROR, "each task starts all workers of its node: GPUs are shared by many"
    NNODES_NOT_NODES = ERROR, "torchrun waits for nodes that never come, or leaves some out"
    NPROC_NOT_GPUS = ERROR, "workers without a GPU fail or share; GPUs without a worker are idle"
    NO_ENDPOINT = ERROR, "torchrun does not read MASTER_ADDR: each node waits on its own loopback"
    NO_NODE_RANK = ERROR, "each node takes itself for the first: they wait for each other for ever"
    TASK_VARIABLE_EARLY = ERROR, "the script's own shell fills it in, and there it is always 0"
    NODELIST_UNEXPANDED = ERROR, "the list is one word such as n[1-4]: what comes out is no host"
    DIFFERS_BY_NODE = ERROR, "each node gets another value, so each waits for the others alone"
    NO_SIGNAL = (
        WARNING,
        "at the limit the training is killed, and loses what it did since its last save",
    )
    SIGNAL_UNTRAPPED = (
        ERROR,
        "the script ends, or waits for its foreground command, and no checkpoint is saved",
    )


def hit_line(rule: BatchRule, script: BatchScript, line: int, what: str, fix: str) -> Breach:
    """A breach at a line; ``fix`` is what to write instead."""
    return Breach(rule=rule, where=f"{script.file}:{line}", line=line, what=what, fix=fix)
