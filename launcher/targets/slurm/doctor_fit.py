"""Whether the nodes and the partition that a job names fit what it asks for. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.job.spec import JobSpec
from launcher.targets.slurm.plan import count_gpus, parse_time_s
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.site import ClusterNode, seconds_of

REASONS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """What a job asks of Slurm. ``together`` are the nodes of one job, 1 for an array's elements.

    ``partitions`` is empty for the default one; ``time_s`` None where nothing is said.
    """

    partitions: tuple[str, ...]
    least: int
    most: int
    together: int
    gpus: int
    gpu_kind: str | None
    cpus: int
    memory_mb: int
    features: tuple[str, ...]
    account: str | None
    qos: str | None
    time_s: int | None
    grace_s: int
    notice_s: int
    requeue: bool


def parse_request(job: JobSpec, settings: SlurmSettings) -> SlurmRequest:
    """What a job asks of Slurm."""
    spec, nodes = job.slurm, job.nnodes
    words = (spec.gpus_per_node or _gpu_words(spec.gres or "")).split(":")
    kind = words[0] if words[0] and not words[0].isdigit() else None
    features = spec.constraint or ""
    return SlurmRequest(
        partitions=tuple(filter(None, (spec.partition or "").split(","))),
        least=nodes.min,
        most=nodes.max,
        together=1 if settings.kind == "array" else nodes.min,
        gpus=count_gpus(job),
        gpu_kind=kind,
        cpus=spec.cpus_per_task or math.ceil(job.resources.cpus or 0),
        memory_mb=_memory_mb(spec.mem) or -(-(job.resources.memory_bytes or 0) >> 20),
        # Slurm itself judges `a|b`, `[a*2]` and the like.
        features=tuple(features.split("&")) if re.fullmatch(r"[\w&.-]+", features) else (),
        account=spec.account,
        qos=spec.qos,
        time_s=None if spec.time in (None, "UNLIMITED") else parse_time_s(spec.time),
        grace_s=math.ceil(job.stop_grace_s),
        notice_s=settings.notice_s,
        requeue=spec.requeue,
    )


def _gpu_words(gres: str) -> str:
    """``a100:8`` of ``gpu:a100:8,nvme:1``."""
    return next((one.partition(":")[2] for one in gres.split(",") if one.startswith("gpu")), "")


def _memory_mb(text: str | None) -> int:
    if text is None:
        return 0
    shift = {"K": -10, "M": 0, "G": 10, "T": 20}.get(text[-1], 0)
    number = int(text.rstrip("KMGT"))
    return number << shift if shift >= 0 else number >> -shift


def judge_partition(
    name: str, partitions: Mapping[str, Mapping[str, str]], asked: SlurmRequest
) -> Iterator[Finding]:
    """One partition that the job names, against its limits; an empty name is the default one."""
    open_ones = ",".join(n for n, fields in partitions.items() if fields.get("State") == "UP")
    fix = f"--set slurm.partition=NAME, one of: {open_ones or 'none is up (sinfo)'}"
    defaults = [n for n, fields in partitions.items() if fields.get("Default") == "YES"]
    if not (name := name or next(iter(defaults), "")):
        yield failed("partition", "default", "the cluster has none, and the job names none", fix)
        return
    if name not in partitions:
        yield failed("partition", name, "is not there, or hidden from you", fix)
        return
    fields = partitions[name]
    if (state := fields.get("State", "UP")) != "UP":
        waits = "jobs wait in it" if state == "DOWN" else "it takes no jobs"
        yield failed("partition", name, f"is {state}: {waits}", fix)
    problems = [*_judge_limits(name, fields, asked), *_judge_who(name, fields, asked)]
    yield from problems
    if state == "UP" and not problems:
        limit, most = fields.get("MaxTime", "UNLIMITED"), fields.get("MaxNodes", "UNLIMITED")
        told = f"up, {fields.get('TotalNodes', '?')} nodes, time limit {limit}"
        if most != "UNLIMITED":
            told += f", at most {most} nodes a job"
        if asked.time_s is None and fields.get("DefaultTime", "NONE") not in ("NONE", limit):
            told += f"; slurm.time is left out, so a start lasts {fields['DefaultTime']}"
        yield ok("partition", name, told)


def _judge_limits(name: str, fields: Mapping[str, str], asked: SlurmRequest) -> Iterator[Finding]:
    limit = fields.get("MaxTime", "UNLIMITED")
    default = fields.get("DefaultTime", "NONE")
    lasts_s = asked.time_s or seconds_of(limit if default == "NONE" else default)
    if asked.time_s and asked.time_s > seconds_of(limit):
        told = f"its time limit is {limit}, below slurm.time: the job would wait for ever"
        yield failed("partition", name, told, f"--set slurm.time={limit}; the job is requeued")
    elif lasts_s <= asked.notice_s:
        told = f"a start lasts {lasts_s:g} s; the last {asked.notice_s} s are for the checkpoint"
        yield failed("partition", name, told, "a longer slurm.time, or a shorter stop_grace_s")
    if asked.together > seconds_of(most := fields.get("MaxNodes", "UNLIMITED")):
        told = f"at most {most} nodes for a job, which asks for {asked.together}"
        fix = f"--nnodes {most}, or --set slurm.kind=array, whose elements are jobs of one node"
        yield failed("partition", name, told, fix)
    least = fields.get("MinNodes", "0")
    if least.isdigit() and asked.together < int(least):
        told = f"at least {least} nodes for a job, which asks for {asked.together}"
        yield failed("partition", name, told, f"--nnodes {least}, or another partition (sinfo)")


def _judge_who(name: str, fields: Mapping[str, str], asked: SlurmRequest) -> Iterator[Finding]:
    for key, value, words in (
        ("account", asked.account, "Accounts"),
        ("qos", asked.qos, "Qos"),
    ):
        allowed, denied = fields.get(f"Allow{words}", "ALL"), fields.get(f"Deny{words}", "")
        if value and allowed != "ALL" and value not in allowed.split(","):
            told = f"takes jobs of {words} {allowed} alone"
            yield failed("partition", name, told, f"--set slurm.{key}={allowed.split(',')[0]}")
        elif value and value in denied.split(","):
            told = f"takes no jobs of {words} {denied}"
            yield failed("partition", name, told, f"another slurm.{key}, or another partition")


def judge_nodes(nodes: Sequence[ClusterNode], asked: SlurmRequest) -> Iterator[Finding]:
    """The nodes of the job's partitions, each once: which fit the job, and which take jobs."""
    where = ",".join(sorted({node.partition for node in nodes})) or "partition"
    each = list({node.name: node for node in nodes}.values())
    yield from _judge_gpus(each, asked, where)
    fit, unfit = [], Counter[str]()
    for node in each:
        if lacks := _lacks(node, asked):
            unfit[lacks] += 1
        else:
            fit.append(node)
    ready = [node for node in fit if node.takes_jobs]
    states = Counter(node.state for node in each)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common())
    needs = f"the job needs {asked.least}"
    if len(fit) < asked.least:
        why = "".join(f"; {count} with {lacks}" for lacks, count in unfit.most_common())
        found = f"{len(fit)} of {len(each)} nodes fit the job, and {needs}{why}"
        yield failed("nodes", where, found, _fix_of_size(len(fit)))
    elif len(ready) < asked.least:
        found = f"{len(ready)} of {len(fit)} fitting nodes take jobs, and {needs} ({told})"
        yield failed("nodes", where, found, f"{_fix_of_size(len(ready))}; or wait for the others")
    else:
        yield ok("nodes", where, f"{len(ready)} fit and take jobs ({told})")
    yield from _judge_lost(each)


def _fix_of_size(count: int) -> str:
    other = "another partition (sinfo --Node --long)"
    return f"--nnodes {count}, or {other}" if count else other


def _lacks(node: ClusterNode, asked: SlurmRequest) -> str:
    """What a node has too little of for the job; empty where it fits."""
    missing = [feature for feature in asked.features if feature not in node.features]
    if missing:
        return f"no feature {missing[0]}"
    if node.count_gpus(asked.gpu_kind) < asked.gpus:
        return node.told_gpus or "no GPU"
    if node.cpus < asked.cpus:
        return f"{node.cpus} cores"
    if node.memory_mb < asked.memory_mb:
        return f"{node.memory_mb} MB of memory"
    return ""


def _judge_gpus(nodes: Sequence[ClusterNode], asked: SlurmRequest, where: str) -> Iterator[Finding]:
    kinds = Counter(node.told_gpus for node in nodes)
    told = ", ".join(f"{count} with {gpus or 'none'}" for gpus, count in kinds.most_common())
    having = [node for node in nodes if node.gpus]
    if not asked.gpus:
        if nodes and len(having) == len(nodes):
            count = min(node.count_gpus(None) for node in having)
            found = f"the job asks for none; nodes: {told}"
            yield warning("GPUs", where, found, f"--set slurm.gpus_per_node={count}")
        return
    want = f"gpu:{asked.gpu_kind}:{asked.gpus}" if asked.gpu_kind else f"gpu:{asked.gpus}"
    fit = [node for node in nodes if node.count_gpus(asked.gpu_kind) >= asked.gpus]
    if len(fit) >= asked.least:
        yield ok("GPUs", where, f"{want} of each node; nodes: {told}")
        return
    found = f"the job asks {asked.least} nodes for {want} each; nodes: {told}"
    fix = "another partition (sinfo --all --format '%P %D %G')"
    if best := max(having, key=lambda node: node.count_gpus(None), default=None):
        kind, count = max(best.gpus, key=lambda one: one[1])
        fix = f"--set slurm.gpus_per_node={kind}{':' if kind else ''}{count}, or {fix}"
    yield failed("GPUs", where, found, fix)


def _judge_lost(nodes: Sequence[ClusterNode]) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if not node.takes_jobs:
            groups.setdefault((node.state, node.reason), []).append(node.name)
    for (state, reason), names in list(groups.items())[:REASONS_SHOWN]:
        shown = ",".join(names[:REASONS_SHOWN]) + (",..." if len(names) > REASONS_SHOWN else "")
        fix = f"scontrol show node {names[0]}"
        if "drain" in state or state.startswith(("down", "inval", "fail")):
            fix += f"; an admin: scontrol update NodeName={shown} State=RESUME"
        yield warning("node", shown, f"{state}: {reason or 'no reason is given'}", fix)
    if len(groups) > REASONS_SHOWN:
        more = f"{len(groups) - REASONS_SHOWN} more reasons for which nodes take no jobs"
        yield warning("node", "others", more, "sinfo --list-reasons")
