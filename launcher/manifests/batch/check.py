"""All rules of batch scripts, applied to one, line by line."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping

from launcher.manifests.batch.script import (
    BatchScript,
    Launch,
    Options,
    ScriptLine,
    parse_batch_script,
)
from launcher.manifests.checks.rules import ERROR, WARNING, AnyRule, Breach, Breaches

FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
JOB_PORT = "$((20000 + SLURM_JOB_ID % 20000))"
NUMBER = re.compile(r"[0-9]{1,9}")
STARTERS = re.compile(r"(^|[;&|]\s*)\s*(srun|mpirun|mpiexec|pdsh|clush|ssh|parallel)\b")
NODELIST = re.compile(r"\$\{?SLURM_(JOB_|STEP_)?NODELIST\b")
EXPANDERS = re.compile(r"scontrol|nodeset|hostlist|expand|python|perl|sed|awk")
TAKES_FIRST = re.compile(r"\bhead\b|\bcut\s+-d|%%|(ADDR|addr|endpoint)[= ][\"']?\$\{?SLURM_\w*LIST")
MEETING = re.compile(r"MASTER_(ADDR|PORT)=")
OF_EACH_NODE = re.compile(
    r"\bhostname\b|\$\{?(HOSTNAME|SLURMD_NODENAME)\b|\bRANDOM\b|\b(shuf|uuidgen|date)\b"
)
LOOPBACK = re.compile(r"(^|=)\[?(localhost|127\.\d+\.\d+\.\d+|::1)\b")
TASK_VARIABLE = re.compile(r"\$\{?(SLURM_PROCID|SLURM_NODEID|SLURM_LOCALID)\b")
SIGNALS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
BACKGROUND = re.compile(r"(?<![&>\\])&(?![&>\d])")
SEVERAL_JOBS = re.compile(r"^#SBATCH\s+(hetjob|packjob)\b", re.MULTILINE)


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


def check_batch_script(text: str, file: str) -> list[Breach]:
    """The breaches of one batch script, in the order of its lines.

    In a job with several components only misplaced options are found, because it is not known
    which options belong to which step.
    """
    script = parse_batch_script(text, file)
    found = list(_check_late(script))
    if not SEVERAL_JOBS.search(text):
        found += _check_lines(script)
        for launch in script.launches:
            found += _check_launch(script, launch)
        if script.launches:
            found += _check_end(script)
    return sorted(dict.fromkeys(found), key=lambda one: one.line)


def _check_late(script: BatchScript) -> Breaches:
    for late in script.late:
        what = f"#SBATCH {late.raw} after the first command"
        fix = f"move it above line {script.lines[0].number}"
        yield hit_line(BatchRule.SBATCH_LATE, script, late.number, what, fix)


# -- counts ---------------------------------------------------------------------------------------


def _count(options: Options, name: str) -> int | None:
    given = options.get(name)
    last = given.text.split("(")[0].rpartition(":")[2] if given else ""
    return int(last) if NUMBER.fullmatch(last) else None


def _counts(script: BatchScript, launch: Launch | None = None) -> Mapping[str, int | None]:
    """Written counts: nodes and tasks of the job or a launch's step, tasks and GPUs of a node."""
    job, step = dict(script.options), (launch.srun or {}) if launch else {}
    if "ntasks" in step:
        job.pop("ntasks-per-node", None)
    options = {**job, **step}
    nodes, ntasks = _count(options, "nodes"), _count(options, "ntasks")
    tasks = _count(options, "ntasks-per-node")
    if nodes is None and ntasks and (tasks or ntasks == 1):
        nodes = ntasks // (tasks or 1)
    if nodes and ntasks and ntasks < nodes:
        nodes = ntasks
    if tasks is None and nodes:
        tasks = 1 if ntasks is None else ntasks // nodes
    if ntasks is None and nodes and tasks:
        ntasks = nodes * tasks
    gpus = _count(options, "gpus-per-node")
    if gpus is None and "gpu" in (gres := options["gres"].text if "gres" in options else ""):
        gpus = (_count(options, "gres") or 1) if "," not in gres else None
    if gpus is None and nodes == 1:
        gpus = _count(options, "gpus")
    return {"nodes": nodes, "ntasks": ntasks, "tasks": tasks, "gpus": gpus}


VARIABLES = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NPROCS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "tasks",
    "SLURM_GPUS_ON_NODE": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus",
}
"""Which count a variable of Slurm holds."""


def _number(value: str, counts: Mapping[str, int | None]) -> int | None:
    """A written number, or the value of a variable of Slurm; None for anything else."""
    if NUMBER.fullmatch(value):
        return int(value)
    name = re.fullmatch(r"\$\{?(\w+)\}?", value)
    return counts.get(VARIABLES.get(name[1], "")) if name else None


# -- one launch -----------------------------------------------------------------------------------


def _check_launch(script: BatchScript, launch: Launch) -> Breaches:
    counts = _counts(script, launch)
    yield from _check_nproc(script, launch, counts)
    is_multiple = (counts["nodes"] or 0) > 1
    starts_elsewhere = any(STARTERS.search(line.raw) for line in script.lines)
    if is_multiple and launch.srun is None and not starts_elsewhere:
        what = f"torchrun without srun, in a job of {counts['nodes']} nodes"
        fix = "srun --ntasks-per-node=1 torchrun ..."
        yield hit_line(BatchRule.SRUN_MISSING, script, launch.line.number, what, fix)
    # With these options srun starts torchrun on one chosen node, as scripts with a node loop do.
    if launch.srun is None or {"nodelist", "relative"} & set(launch.srun):
        return
    yield from _check_tasks(script, launch, counts)
    yield from _check_nnodes(script, launch, counts)
    if is_multiple:
        yield from _check_meeting(script, launch)


def _check_nproc(script: BatchScript, launch: Launch, counts: Mapping[str, int | None]) -> Breaches:
    given, gpus = launch.options.get("nproc-per-node"), counts["gpus"]
    workers = _number(given.text, counts) if given else 1
    tasks = 1 if launch.srun is None else counts["tasks"]
    is_unknown = workers is None or not gpus or tasks != 1 or (given is None and launch.is_open)
    if is_unknown or workers == gpus or "PET_NPROC_PER_NODE" in launch.line.raw:
        return
    found = f"--nproc-per-node={workers}" if given else "torchrun without --nproc-per-node"
    what = f"{found}: {workers} worker{'' if workers == 1 else 's'} for {gpus} GPUs"
    fix = f"--nproc-per-node={gpus}"
    yield hit_line(BatchRule.NPROC_NOT_GPUS, script, launch.place("nproc-per-node"), what, fix)


def _check_tasks(script: BatchScript, launch: Launch, counts: Mapping[str, int | None]) -> Breaches:
    tasks = counts["tasks"]
    if tasks is None or tasks < 2 or _counts_tasks(launch, counts):
        return
    options = {**script.options, **(launch.srun or {})}
    of_srun = "ntasks" in (launch.srun or {})
    name = "ntasks" if of_srun or "ntasks-per-node" not in options else "ntasks-per-node"
    what = f"--{name}={options[name].text} with torchrun inside: {tasks} torchruns on each node"
    fix = "--ntasks-per-node=1 and --cpus-per-task for all workers of the node"
    yield hit_line(BatchRule.TASKS_WITH_TORCHRUN, script, options[name].line, what, fix)


def _counts_tasks(launch: Launch, counts: Mapping[str, int | None]) -> bool:
    """Whether each task is meant as a node of torchrun, with one worker."""
    given = {name: launch.options.get(name) for name in ("nnodes", "nproc-per-node")}
    nnodes, workers = (_number(one.text, counts) if one else 1 for one in given.values())
    return workers == 1 and nnodes is not None and nnodes == counts["ntasks"]


def _check_nnodes(
    script: BatchScript, launch: Launch, counts: Mapping[str, int | None]
) -> Breaches:
    given, nodes = launch.options.get("nnodes"), counts["nodes"]
    is_told = given is not None or "standalone" in launch.options
    if not is_told and (launch.is_open or "PET_NNODES" in launch.line.raw):
        return
    low, _, high = (given.text if given else "1").partition(":")
    least, most = (_number(text, counts) for text in (low, high or low))
    if nodes is None or least is None or most is None or _counts_tasks(launch, counts):
        return
    # Steps of one node each, side by side, are one group too.
    if any(least <= one <= most for one in (nodes, _counts(script)["nodes"] or nodes)):
        return
    found = "--standalone" if "standalone" in launch.options else "torchrun without --nnodes"
    if given:
        is_variable = not low.isdigit() and not high
        found = f"--nnodes={given.text}{f', which is {least},' if is_variable else ''}"
    what = f"{found} on {nodes} node{'' if nodes == 1 else 's'}"
    fix = "--nnodes=$SLURM_NNODES, and the same --rdzv-endpoint on all nodes"
    yield hit_line(BatchRule.NNODES_NOT_NODES, script, launch.place("nnodes"), what, fix)


def _check_meeting(script: BatchScript, launch: Launch) -> Breaches:
    """torchrun on several nodes: whether it has a meeting point, and each node its rank."""
    given, line = set(launch.options), launch.line.number
    backend, nnodes = launch.options.get("rdzv-backend"), launch.options.get("nnodes")
    is_static = backend is None or backend.text == "static"
    is_whole = not launch.is_open and "PET_" not in launch.line.raw and nnodes is not None
    if is_whole and not given & {"rdzv-endpoint", "master-addr", "standalone"}:
        what = "torchrun on several nodes without --rdzv-endpoint or --master-addr"
        fix = f"--rdzv-backend=c10d --rdzv-endpoint={FIRST_NODE}:{JOB_PORT}"
        yield hit_line(BatchRule.NO_ENDPOINT, script, line, what, fix)
    elif is_whole and is_static and not given & {"node-rank", "standalone"}:
        what = "torchrun on several nodes without --node-rank, and not --rdzv-backend=c10d"
        yield hit_line(BatchRule.NO_NODE_RANK, script, line, what, "--rdzv-backend=c10d")
    rank = launch.options.get("node-rank")
    if is_static and rank and (variable := TASK_VARIABLE.search(rank.here)):
        what = f"--node-rank=${variable[1]} outside of single quotes"
        fix = f"srun bash -c 'torchrun --node-rank=${variable[1]} ...', in single quotes"
        yield hit_line(BatchRule.TASK_VARIABLE_EARLY, script, rank.line, what, fix)


# -- one line -------------------------------------------------------------------------------------


def _check_lines(script: BatchScript) -> Breaches:
    nodes = _counts(script)["nodes"]
    for line in script.lines:
        takes_first = NODELIST.search(line.raw) and TAKES_FIRST.search(line.raw)
        if takes_first and not EXPANDERS.search(line.raw):
            what = " ".join(line.raw.split())[:70]
            yield hit_line(BatchRule.NODELIST_UNEXPANDED, script, line.number, what, FIRST_NODE)
        if nodes != 1:
            yield from _check_values(script, line, is_multiple=nodes is not None)
        exports = re.match(r"\s*export\s+(\w*RANK)=", line.raw)
        variable = TASK_VARIABLE.search("".join(word.here for word in line.words))
        if exports and variable and not script.launches:
            what = f"{exports[1]}=${variable[1]} outside of srun"
            fix = f"srun bash -c '{exports[1]}=${variable[1]} python ...', in single quotes"
            yield hit_line(BatchRule.TASK_VARIABLE_EARLY, script, line.number, what, fix)


def _check_values(script: BatchScript, line: ScriptLine, *, is_multiple: bool) -> Breaches:
    """Values that all nodes must agree on."""
    for name, text, here, number in _values(script, line):
        if OF_EACH_NODE.search(text) and not OF_EACH_NODE.search(here):
            what = f"{name} is filled in by each node's own shell"
        elif is_multiple and LOOPBACK.search(text):
            what = f"{name} is the loopback of each node"
        else:
            continue
        fix = f"a value of the job, above srun: {FIRST_NODE}, {JOB_PORT} or $SLURM_JOB_ID"
        yield hit_line(BatchRule.DIFFERS_BY_NODE, script, number, what, fix)


def _values(script: BatchScript, line: ScriptLine) -> Iterator[tuple[str, str, str, int]]:
    """Addresses, ports and ids of a line: name, value, the part filled in here (``Word``), line."""
    for word in line.words:
        if found := MEETING.match(word.text):
            yield found[0].rstrip("="), word.text, word.here, word.line
    for launch in script.launches:
        for name in ("rdzv-endpoint", "rdzv-id", "master-addr", "master-port"):
            if launch.line is line and (given := launch.options.get(name)):
                yield f"--{name}", given.text, given.here, given.line


# -- the end of the job's time --------------------------------------------------------------------


def _check_end(script: BatchScript) -> Breaches:
    limit, signal = script.options.get("time"), script.options.get("signal")
    if signal is None and limit is not None and limit.text.upper() not in ("UNLIMITED", "0"):
        what = f"--time={limit.text} without --signal"
        fix = (
            "#SBATCH --signal=B:USR1@120, a trap that has a checkpoint saved, and #SBATCH --requeue"
        )
        yield hit_line(BatchRule.NO_SIGNAL, script, limit.line, what, fix)
    if signal is None or not signal.text.upper().startswith("B:"):
        return
    if any(word.text == "exec" for line in script.lines for word in line.words):
        return
    name = _signal_name(signal.text[2:].partition("@")[0])
    traps = (word for line in script.lines if "trap" in line.raw for word in line.words)
    if name not in {_signal_name(word.text) for word in traps}:
        what = f"--signal={signal.text}, and no trap for {name}"
        fix = f"trap 'scontrol requeue $SLURM_JOB_ID' {name}, above srun ... & wait"
        yield hit_line(BatchRule.SIGNAL_UNTRAPPED, script, signal.line, what, fix)
        return
    first = script.launches[0].line.number
    later = (line.raw for line in script.lines if line.number >= first)
    if not any(BACKGROUND.search(raw) for raw in later):
        what = f"torchrun in the foreground, with a trap for {name}"
        yield hit_line(BatchRule.SIGNAL_UNTRAPPED, script, first, what, "srun ... & wait")


def _signal_name(text: str) -> str:
    name = text.upper().removeprefix("SIG")
    return SIGNALS.get(name, name)


def hit_line(rule: BatchRule, script: BatchScript, line: int, what: str, fix: str) -> Breach:
    """A breach at a line; ``fix`` is what to write instead."""
    return Breach(rule=rule, where=f"{script.file}:{line}", line=line, what=what, fix=fix)
