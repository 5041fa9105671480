"""Rules for what sbatch itself reads: the first line and the options."""

from __future__ import annotations

import re

from launcher.manifests.batch.rules import BatchRule, hit_line
from launcher.manifests.batch.script import SBATCH, BatchScript
from launcher.manifests.batch.shape import job_shape
from launcher.manifests.checks.rules import Breaches

NEEDS = {
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_NTASKS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu"),
    "SLURM_NPROCS": ("ntasks", "ntasks-per-node", "ntasks-per-gpu"),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_GPUS": ("gpus",),
}
"""Variables that Slurm sets only where one of these options is given."""


def check_lines(script: BatchScript, text: str) -> Breaches:
    """What sbatch would refuse, and options that it would not see or not understand."""
    if not text.startswith("#!"):
        fix = "make #!/bin/bash the first line"
        yield hit_line(BatchRule.SHEBANG, script, 1, "the first line is no #! line", fix)
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        fix = f"sed -i 's/\\r$//' {script.file}"
        yield hit_line(BatchRule.DOS_LINES, script, line, "a line ends with CR LF", fix)
    for late in script.late:
        what = f"#SBATCH {late.raw} after the first command"
        fix = f"move it above line {script.commands[0].line}"
        yield hit_line(BatchRule.SBATCH_LATE, script, late.line, what, fix)
    first = script.commands[0].line if script.commands else len(text)
    for found in SBATCH.finditer(script.text):
        line = script.text.count("\n", 0, found.start()) + 1
        value = found[1].split(" #")[0]
        if line < first and (variable := re.search(r"\$[({]?\w+[)}]?|`", value)):
            what = f"{variable[0]} in an option"
            fix = "write the value, or %j (job), %x (name), %u (user) in names of files"
            yield hit_line(BatchRule.SBATCH_VARIABLE, script, line, what, fix)


def check_range(script: BatchScript) -> Breaches:
    """A range of nodes beside a number of tasks on each (seen with Slurm 22.05)."""
    nodes, tasks = script.options.get("nodes"), script.options.get("ntasks-per-node")
    low, dash, high = nodes.value.partition("-") if nodes else ("", "", "")
    if nodes and tasks and dash and low != high:
        what = f"--nodes={nodes.value} with --ntasks-per-node={tasks.value}: {low} at most"
        fix = f"remove line {tasks.line}; srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1"
        if tasks.line == nodes.line:
            fix = fix.replace(f"remove line {tasks.line}", "remove --ntasks-per-node")
        yield hit_line(BatchRule.FEWEST_NODES, script, nodes.line, what, fix)


def check_variables(script: BatchScript) -> Breaches:
    """Variables that are empty because the option that sets them is not there."""
    if not script.has_options:
        return
    shape = job_shape(script)
    told = set()
    for command in script.commands:
        for word in command.words:
            for name in re.findall(r"\$\{?(SLURM_\w+)(?=[}\W]|$)", _outside_single(word.raw)):
                needed = NEEDS.get(name)
                if needed is None or name in told or set(needed) & set(script.options):
                    continue
                told.add(name)
                line = word.line
                what = f"${name} without --{needed[0]}"
                fix = f"#SBATCH --{needed[0]}={_usual(name, shape.gpus)}"
                yield hit_line(BatchRule.SLURM_UNSET, script, line, what, fix)


def _usual(name: str, gpus: int | None) -> str:
    if name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_TASK"):
        return str(gpus or "N")
    return "8" if name == "SLURM_CPUS_PER_TASK" else "1"


def _outside_single(raw: str) -> str:
    """A word without expansions that have a default of their own."""
    return re.sub(r"\$\{\w+:?[-=+?][^}]*\}", "", raw)


def assigns(script: BatchScript, name: str) -> bool:
    """Whether the script sets a variable anywhere, also for one command."""
    return bool(re.search(rf"(?<![\w$]){name}=", script.text))
