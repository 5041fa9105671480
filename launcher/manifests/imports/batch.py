"""Imports batch scripts of Slurm that start a training: options, variables, lines before the
launch. Pure.

Nothing is run: only what a line itself says is known, and the values of variables set before it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from launcher.contract.errors import InputError
from launcher.manifests.imports.command_line import (
    ASSIGNMENT,
    PYTHON,
    SUBSTITUTED,
    LineReader,
    Special,
    has_launcher,
    last,
    launches,
    split_line,
    split_options,
)
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.programs import MEETING, NOWHERE, PROGRAMS

SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".batch")
SBATCH = re.compile(r"^#SBATCH(?=\s|$)(.*)$", re.MULTILINE)
NO_COMMAND = re.compile(r"\s*(#.*)?")
WORD = re.compile(
    rf"""(?:\\.|'[^']*+'|"(?:\\.|{SUBSTITUTED}|[^"\\])*+"|{SUBSTITUTED}|[^\s'"\\`])++""", re.DOTALL
)
MOST_ROWS = 100
"""Rows of one command: a quote that is never closed would swallow the whole script."""
HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*['\"]?(\w+)")
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
NO_SIGNAL = (
    "--signal, which the script lacks",
    "the launcher has the training save before the time limit",
)


@dataclass(frozen=True, kw_only=True)
class ScriptLine:
    """A command with the rows that continue it, and its words without their quotes."""

    raw: str
    words: tuple[str, ...]


def is_batch_script(text: str, file: str) -> bool:
    """Whether a file is one by its suffix, or by its content unless the suffix is YAML's."""
    suffix = PurePath(file).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        return False
    return suffix in SUFFIXES or text.startswith("#!") or bool(SBATCH.search(text))


def import_batch_script(text: str, draft: Draft) -> None:
    """Reads a batch script. Raises ``InputError`` where it starts no training."""
    text = text.replace("\r\n", "\n")
    lines = list(_read_lines(text))
    # sbatch reads no options below the first command.
    head = itertools.takewhile(NO_COMMAND.fullmatch, text.split("\n"))
    given: dict[str, str] = {}
    for match in filter(None, map(SBATCH.match, head)):
        words, _ = _split(match[1])
        given |= {name: value for name, value, _ in split_options(words, PROGRAMS["srun"])}
    gres = re.search(r"gpu(?::[A-Za-z]\w*)?:(\d+)", given.get("gres", ""))
    if gres:
        given.setdefault("gpus-per-node", gres[1])
    known = {variable: given[name] for variable, name in OF_SLURM.items() if given.get(name)}
    reader = LineReader(draft, known)
    starts = [line for line in lines if _starts_training(line)]
    runs = [line for line in starts if has_launcher(line.words)] or starts
    if not runs:
        raise InputError(
            f"{draft.source}: no line starts torchrun, srun, mpirun, accelerate or python",
            f"by hand: launcher docs job-file; {draft.source} itself: sbatch {draft.source}",
        )
    for line in lines:
        if line is runs[0]:
            break
        _prepare(line, reader, known)
    reader.read_all(split_line(runs[0].raw))
    for line in runs[1:]:
        draft.leave(line.raw.split("\n")[0], "a second training: a job file of its own")
    if any(ACTIVATES.search(line) for line in draft.keys.get("slurm.setup", ())):
        draft.put("slurm.python", "python")
    special: Special = defaultdict(list)
    for name, value in given.items():
        written = f"--{name}={value}" if value else f"--{name}"
        value = written if PROGRAMS["srun"].keys.get(name) == "@extra" else value
        if name != "gpus-per-node" or "gres" not in given:
            reader.convert(PROGRAMS["srun"], name, value, f"#SBATCH {written}", special)
    if "signal" not in given:
        draft.leave(*NO_SIGNAL)
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


def _read_lines(text: str) -> Iterator[ScriptLine]:
    """The commands with the rows that continue them, without comments and here-documents."""
    held: list[str] = []
    end = ""
    for row in text.split("\n"):
        if end:
            end = "" if row.strip() == end else end
            continue
        if not held and NO_COMMAND.fullmatch(row):
            continue
        held.append(row)
        raw = "\n".join(held)
        words, is_whole = _split(raw)
        if (row.endswith("\\") or not is_whole) and len(held) < MOST_ROWS:
            continue
        match = HERE_DOCUMENT.search(raw)
        end = match[1] if match else ""
        held.clear()
        yield ScriptLine(raw=raw, words=tuple(words))


def _split(raw: str) -> tuple[list[str], bool]:
    """The words of a command, also those of ``bash -c '...'``, and whether all quotes end."""
    words: list[str] = []
    at = 0
    while at < len(raw):
        if raw[at].isspace() or raw.startswith("\\\n", at):
            at += 1 if raw[at].isspace() else 2
            continue
        match = WORD.match(raw, at)
        if match is None:
            return words, False
        token, at = match[0], match.end()
        if token.startswith("#"):
            at = raw.find("\n", at) if "\n" in raw[at:] else len(raw)
        elif token[0] in "'\"" and words and re.fullmatch(r"-[a-z]*c|eval", words[-1]):
            words += _split(token[1:-1])[0]
        else:
            words.append(re.sub(r"\\(.)|['\"]", r"\1", token, flags=re.DOTALL).lstrip("("))
    return words, True


def _starts_training(line: ScriptLine) -> bool:
    words = line.words
    others = {"hostname", "echo", "scontrol", "nvidia-smi", "printf", "which", "pip"}
    is_python = bool(words) and PYTHON.fullmatch(words[0].rpartition("/")[2])
    return bool(is_python or launches(words)) and not others & {*words}


def _prepare(line: ScriptLine, reader: LineReader, known: dict[str, str]) -> None:
    """A line before the launch: a variable, the preparation of a node, or neither."""
    words = line.words
    names = words[1:] if words[:1] == ("export",) else words
    assignments = [ASSIGNMENT.fullmatch(word) for word in names]
    if assignments and all(assignments) and "$(" not in line.raw and "`" not in line.raw:
        for assignment in filter(None, assignments):
            if words[0] == "export":
                reader.read_command([assignment[0]])
            known[assignment[1]] = reader.filled(assignment[2])
    elif words and words[0] in SETUP:
        reader.draft.add("slurm.setup", line.raw)
    else:
        other = f"{NOWHERE}; slurm.setup takes lines of shell"
        why = MEETING if MEETS.search(line.raw) else other
        reader.draft.leave(line.raw.replace("\n", " "), why)
