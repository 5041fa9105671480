"""Plans a run on Slurm: sbatch's options and those refused, the notice before the time limit, GPUs,
how often it is requeued."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError
from launcher.contract.node_plan import AgentSettings, Mount
from launcher.plan.nodes import absolute
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets.agent_files import is_own_image
from launcher.targets.shared_folder import PLACEHOLDER_PORT, check_meeting, folders_of, let_meet
from launcher.targets.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.slurm_process import SlurmProcess

TARGET = "slurm"
NOTICE_MARGIN_S = 30
"""Seconds from the end of the grace to the time limit: slurmctld checks limits every 30 s."""
LEAST_REQUEUES = 3
"""How often a job comes back after faults of the platform even if ``max_restarts`` is 0: a lost
node is no failed training."""
OWN_OPTIONS = {
    **dict.fromkeys(("--time", "-t"), "slurm.time"),
    **dict.fromkeys(("--gpus", "-G", "--gpus-per-node", "--gpus-per-task"), "slurm.gpus_per_node"),
    **dict.fromkeys(("--cpus-per-task", "-c"), "slurm.cpus_per_task"),
    **dict.fromkeys(("--nodes", "-N", "--array", "-a"), "nnodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "nproc_per_node"),
    **dict.fromkeys(("--requeue", "--no-requeue"), "slurm.requeue"),
    **dict.fromkeys(("--job-name", "-J"), "name"),
    **dict.fromkeys(("--chdir", "-D"), "workdir"),
    "--gres": "slurm.gres",
    "--signal": "stop_grace_s",
    "--container-image": "slurm.container",
    **dict.fromkeys(("--output", "-o", "--error", "-e", "--open-mode", "--input", "-i"), ""),
    **dict.fromkeys(("--comment", "--no-kill", "-k", "--wrap", "--parsable", "--wait", "-W"), ""),
    **dict.fromkeys(("--test-only", "--kill-on-invalid-dep"), ""),
}
"""Options of sbatch that the launcher sets; the key of the job file that decides each, if any."""


def plan_slurm(job: JobSpec, cwd: str) -> SlurmSettings:
    """The settings of a job's jobs on Slurm. Raises ``InputError`` if they cannot work."""
    spec = job.slurm
    _check(job)
    time_s = None if spec.time is None else parse_time_s(spec.time)
    notice_s = job.stop_grace_s + NOTICE_MARGIN_S
    if time_s is not None and time_s <= notice_s:
        raise KeyInputError(
            ("slurm", "time"),
            f"found {spec.time}; the last {notice_s} s are for the checkpoint "
            f"(stop_grace_s and {NOTICE_MARGIN_S} s)",
            f"a longer time, or a shorter stop_grace_s than {job.stop_grace_s}",
        )
    image = (spec.image or job.image) if spec.container else None
    mounts = tuple(
        Mount(source=absolute(m.source, cwd), target=m.target, read_only=m.read_only)
        for m in job.mounts
    )
    return SlurmSettings(
        kind=spec.kind or ("array" if job.is_elastic else "allocation"),
        options=_plan_options(job),
        setup=spec.setup,
        python=spec.python or "python3",
        container=spec.container,
        image=image,
        mounts=mounts if image else (),
        gpus=count_gpus(job),
        notice_s=notice_s,
        requeue=spec.requeue,
        max_requeues=max(LEAST_REQUEUES, job.max_restarts),
    )


def _plan_options(job: JobSpec) -> tuple[str, ...]:
    """Options of sbatch for what the job asks of Slurm, in the order of the keys."""
    spec, resources = job.slurm, job.resources
    same = ("partition", "account", "qos", "time", "constraint", "reservation", "exclude", "gres")
    named: dict[str, str | int | None] = {
        **{key: getattr(spec, key) for key in same},
        "gpus-per-node": spec.gpus_per_node or (None if spec.gres else resources.gpus or None),
        "cpus-per-task": spec.cpus_per_task or math.ceil(resources.cpus or 0),
        "mem": spec.mem or (resources.memory_bytes and f"{-(-resources.memory_bytes >> 20)}M"),
    }
    given = (f"--{name}={value}" for name, value in named.items() if value)
    return (*given, *(["--exclusive"] if spec.exclusive else []), *spec.extra)


def parse_time_s(text: str) -> int | None:
    """Seconds of a time as sbatch takes it; None for no limit. ``90`` are minutes."""
    if text == "UNLIMITED":
        return None
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def count_gpus(job: JobSpec) -> int:
    """GPUs of each node, by slurm.gres, slurm.gpus_per_node or resources.gpus; 0 if none is set."""
    spec, wanted_gpus = job.slurm, job.resources.gpus
    path, text = ("slurm", "gpus_per_node"), spec.gpus_per_node
    if spec.gres is not None:
        gpus = [gres for gres in spec.gres.split(",") if gres.startswith("gpu")]
        path, text = ("slurm", "gres"), gpus[0].partition(":")[2] or "1" if gpus else None
    if text is None:
        return wanted_gpus or 0
    last = re.sub(r"\(.*", "", text.rpartition(":")[2])
    count = int(last) if last.isdigit() else 1
    if wanted_gpus is not None and wanted_gpus != count:
        raise KeyInputError(
            path,
            f"{text} are {count} GPUs, but resources.gpus is {wanted_gpus}",
            "leave one of them out",
        )
    return count


def _check(job: JobSpec) -> None:
    """Raises ``InputError`` for what cannot run on Slurm."""
    spec = job.slurm
    check_meeting(job)
    if spec.gres is not None and spec.gpus_per_node is not None:
        raise KeyInputError(
            ("slurm", "gres"), "is set, and slurm.gpus_per_node too", "leave one of them out"
        )
    if spec.container and not (spec.image or job.image):
        raise KeyInputError(
            ("slurm", "container"), f"is {spec.container}, but no image is named", "image: NAME"
        )
    if job.nproc_per_node == "gpu" and not count_gpus(job):
        raise KeyInputError(
            ("nproc_per_node",),
            "gpu, but no GPU is asked for",
            "resources.gpus: 8, or how many GPUs a node has",
        )
    for option in spec.extra:
        # The name is --time in --time=1 and in --time 1, and -t in -t1.
        name = re.split(r"[= ]", option)[0] if option.startswith("--") else option[:2]
        if name in OWN_OPTIONS:
            key = OWN_OPTIONS[name]
            raise KeyInputError(
                ("slurm", "extra"),
                f"found {option}; the launcher sets {name}",
                f"{key}: VALUE" if key else f"remove {name}",
            )


def plan_facts(
    job: JobSpec,
    *,
    run_root: str,
    cwd: str,
    torch_version: str | None,
    sends_code: bool,
    allocation: SlurmProcess | None = None,
) -> TargetFacts:
    """The facts for the planner: every path is on the shared file system, as on this machine.

    In an ``allocation`` the run has no job of its own: one set of nodes, which nobody requeues.
    Raises ``InputError`` if the job asks for something that Slurm cannot do.
    """
    settings, in_image = plan_slurm(job, cwd), job.agent.in_image
    place = f"Slurm, {'a job array' if settings.kind == 'array' else 'one job'}"
    if allocation is not None:
        place = f"Slurm, job {allocation.job}, {job.nnodes.max} of its {allocation.nodes} nodes"
        settings = replace(settings, inside=allocation.job, kind="allocation", options=())
        settings = replace(settings, requeue=False, notice_s=0)
    cores = job.slurm.cpus_per_task or math.ceil(job.resources.cpus or 1)
    facts = TargetFacts(
        target=TARGET,
        place=place,
        accelerator="cuda" if settings.gpus else "cpu",
        # All that is known of a node is what the job asks for.
        machine=MachineFacts(cpu_count=cores, device_ids=None, slots=settings.gpus or None),
        image=settings.image,
        agent_in_image=in_image is True and is_own_image(settings.image or ""),
        torch_version=job.torch_version if settings.image else torch_version,
        run_root=run_root,
        cwd=cwd,
        ports=(PLACEHOLDER_PORT,),
        agent=AgentSettings(
            identity=TARGET,
            health_port=None,
            tee=False,
            awaits_nodes=settings.kind == "array",  # Slurm requeues an element that is lost.
        ),
        own=settings,
    )
    folders = folders_of(job, run_root, cwd, sends_code=sends_code)
    return let_meet(facts, job.nnodes.max, folders)
