"""Batch scripts of Slurm that start a training. Pure."""

from __future__ import annotations

import re
from collections import defaultdict

from launcher.contract.errors import InputError
from launcher.manifests.batch.script import BatchScript, ScriptLine
from launcher.manifests.imports.command_line import (
    ASSIGNMENT,
    PYTHON,
    LineReader,
    Special,
    has_launcher,
    last,
    launches,
    split_line,
)
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.programs import MEETING, NOWHERE, PROGRAMS

SETUP = ("module", "ml", "source", ".", "conda", "mamba", "eval", "ulimit", "spack", "cd", "umask")
"""Commands that make a node ready; each start of the job runs them first."""
ACTIVATES = re.compile(r"\bactivate\b")
MEETS = re.compile(r"MASTER_|head_?node|scontrol show host|--ip-address|SLURM_JOB_NODELIST")
"""Lines by which scripts find out where the nodes meet."""
OF_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "nodes"),
    **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "gpus-per-node"),
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
}
"""Variables whose values follow from the script's own options."""


def import_batch_script(script: BatchScript, draft: Draft) -> None:
    """Reads a batch script. Raises ``InputError`` where it starts no training."""
    given = {name: word.text for name, word in script.options.items()}
    gres = re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", given.get("gres", ""))
    if gres:
        given.setdefault("gpus-per-node", gres[1])
    known = {variable: given[name] for variable, name in OF_SLURM.items() if given.get(name)}
    reader = LineReader(draft, known)
    runs = [line for line in script.lines if _starts_training(line)]
    launches = [line for line in runs if has_launcher(_texts(line))] or runs
    if not launches:
        raise InputError(
            f"{script.file}: no line starts torchrun, srun, mpirun, accelerate or python",
            f"by hand: launcher docs job-file; {script.file} itself: sbatch {script.file}",
        )
    for line in script.lines:
        if line is launches[0]:
            break
        _prepare(line, reader, known)
    reader.read_all(split_line(launches[0].raw))
    for line in launches[1:]:
        draft.leave(line.raw.split("\n")[0], "a second training: a job file of its own")
    if any(ACTIVATES.search(line) for line in draft.keys.get("slurm.setup", ())):
        draft.put("slurm.python", "python")
    special: Special = defaultdict(list)
    for name, word in script.options.items():
        written = f"--{name}={word.text}" if word.text else f"--{name}"
        value = written if PROGRAMS["srun"].keys.get(name) == "@extra" else word.text
        if name != "gpus-per-node" or "gres" not in given:
            reader.take(PROGRAMS["srun"], name, value, f"#SBATCH {written}", special)
    _share(special, draft)
    reader.take_slurm(special)


def _share(special: Special, draft: Draft) -> None:
    """Sets the tasks and GPUs of each node, also from the script's totals for all nodes."""
    nodes = draft.keys.get("nnodes", 1)
    for total, key in (("tasks", "tasks_per_node"), ("all_gpus", "gpus")):
        count = last(special, total)
        if count.isdigit() and isinstance(nodes, int) and int(count) % nodes == 0:
            special[key].insert(0, str(int(count) // nodes))
    if gpus := last(special, "gpus"):
        draft.put("slurm.gpus_per_node", gpus)
    tasks = last(special, "tasks_per_node")
    if tasks.isdigit() and "nproc_per_node" not in draft.keys:
        draft.put("nproc_per_node", int(tasks))
    cpus = draft.keys.get("slurm.cpus_per_task")
    if tasks.isdigit() and isinstance(cpus, int):
        # Each node's only task is the agent, which has the cores of all its workers.
        draft.keys["slurm.cpus_per_task"] = cpus * int(tasks)


def _texts(line: ScriptLine) -> list[str]:
    return [word.text for word in line.words]


def _starts_training(line: ScriptLine) -> bool:
    words = _texts(line)
    others = {"hostname", "echo", "scontrol", "nvidia-smi", "printf", "which", "pip"}
    is_python = bool(words) and PYTHON.fullmatch(words[0].rpartition("/")[2])
    return bool(is_python or launches(words)) and not others & {*words}


def _prepare(line: ScriptLine, reader: LineReader, known: dict[str, str]) -> None:
    """A line before the launch: a variable, the preparation of a node, or neither."""
    words = _texts(line)
    names = words[1:] if words[:1] == ["export"] else words
    found = [ASSIGNMENT.fullmatch(word) for word in names]
    if found and all(found) and "$(" not in line.raw and "`" not in line.raw:
        for one in filter(None, found):
            if words[0] == "export":
                reader.read([one[0]])
            known[one[1]] = one[2]
    elif words and words[0] in SETUP:
        reader.draft.add("slurm.setup", line.raw)
    else:
        other = f"{NOWHERE}; slurm.setup takes lines of shell"
        why = MEETING if MEETS.search(line.raw) else other
        reader.draft.leave(line.raw.replace("\n", " "), why)
