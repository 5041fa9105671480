"""Renders a plan as the batch script of its jobs, which works by ``sbatch`` alone: options of
sbatch and srun, pyxis, apptainer.

The script is a header and one ``srun`` under ``agent.pyz job`` (``launcher.agent.batch_job``).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.node_plan import NodeTask
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import render_base64
from launcher.targets.slurm.client import comment_of
from launcher.targets.slurm.settings import JOBS_DIR, TASK_FILE, SlurmSettings
from launcher.targets.subprocesses.shell import CONTINUED, quote, render_line

ARRAY, PYXIS = "array", "pyxis"


def render_script(plan: LaunchPlan, *, embed: bool = False) -> str:
    """The script; ``embed``: with the agent's archive in it.

    Raises ``InputError`` for a folder that a container's mounts cannot express.
    """
    slurm = SlurmSettings.of(plan)
    assert plan.agent is not None, "Slurm's nodes need the agent"
    beside = [] if embed else [protocol.AGENT_ARCHIVE]
    beside += ["code.tar.gz"] if plan.code else []
    needs = f" put {' and '.join(beside)} beside it;" if beside else ""
    by, jobs = "bash" if slurm.inside else "sbatch", quote(f"{plan.run_dir}/{JOBS_DIR}")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {quote_option(option)}" for option in _options(plan, slurm)),
        f"# By hand: mkdir -p {jobs};{needs} {by} THIS-FILE",
        *(["trap early=--early USR1  # The end of its time is near."] if slurm.notice_s else []),
        *([_last_word(jobs)] if slurm.inside else []),
        *slurm.setup,
        *_archive(quote(f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"), embed=embed),
        "trap '' USR1  # It would end the next program, which has yet to ask for it.",
        CONTINUED.join([*_job(plan, slurm), *_srun(plan, slurm)]) + " <<'END'",
        NodeTask(node=plan.nodes[0], settings=plan.agent).to_json().rstrip("\n"),
        "END",
    ]
    return "\n".join(lines) + "\n"


def _last_word(jobs: str) -> str:
    """Of lines of ``slurm.setup`` that end the script: the job around it does not tell."""
    key = f"{jobs}/$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
    return f"end() {{ : >>{key}.started; echo 1 over >{key}.ended; }}; trap end EXIT"


def _archive(path: str, *, embed: bool) -> list[str]:
    if not embed:
        fix = "copy it there, or render with --embed"
        return [f"[ -s {path} ] || {{ echo launcher: error: no {path}: {fix}; exit 2; }}"]
    # Elements start at the same time.
    made = f"{path}.$SLURM_JOB_ID"
    begin = f"[ -s {path} ] || {{ base64 -d >{made} && mv {made} {path}; }} <<'END'"
    return [begin, *render_base64(), "END"]


def _options(plan: LaunchPlan, slurm: SlurmSettings) -> list[str]:
    """The options of sbatch."""
    first = plan.nodes[0]
    least, most = first.min_nodes, first.max_nodes
    # Without --no-kill Slurm requeues a job that lost a node, even the node of its script.
    shape, log = [f"--nodes={most}", "--ntasks-per-node=1"], "%j"
    if least < most:
        # With --ntasks-per-node Slurm would count tasks for the minimum, and give no more nodes.
        shape = [f"--nodes={least}-{most}", "--no-kill"]
    if slurm.kind == ARRAY:
        array = f"--array=0-{len(plan.nodes) - 1}"
        shape, log = ["--nodes=1", array, "--ntasks-per-node=1"], "%A_%a"
    folder = f"{plan.run_dir}/{JOBS_DIR}".replace("%", "%%")
    if slurm.inside:
        return []
    return [
        f"--job-name={plan.job_name}",
        f"--comment={comment_of(plan.run_id)}",
        *shape,
        "--requeue" if slurm.requeue else "--no-requeue",
        *([f"--signal=B:USR1@{slurm.notice_s}"] if slurm.notice_s else []),
        f"--output={folder}/{log}.log",
        "--open-mode=append",
        *slurm.options,
    ]


def quote_option(option: str) -> str:
    """An option as sbatch reads it from a script, where only few characters are special."""
    return quote(option) if re.search(r"[\s#'\"\\]", option) else option


def _job(plan: LaunchPlan, slurm: SlurmSettings) -> list[str]:
    """The program that runs where Slurm's commands are, in lines; bash expands its own variables
    alone."""
    make_code = ("tar", "-czf", "code.tar.gz", "-C", plan.code.root if plan.code else "", ".")
    python = "python3" if slurm.container else slurm.python
    decides = (
        *(f"--grace={plan.stop_grace_s}", f"--max-requeues={slurm.max_requeues}"),
        *(["--requeue"] if slurm.requeue else []),
        *(["--array"] if slurm.kind == ARRAY else []),
    )
    return [
        render_line(("exec", python, f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}", "job")),
        render_line((f"--run={plan.run_dir}", f"--checkpoints={plan.checkpoint_dir}")),
        *([render_line((f"--code={render_line(make_code)}",))] if plan.code else []),
        f'--script="$0" {render_line(decides)}' + (" ${early:-}" if slurm.notice_s else ""),
    ]


def _srun(plan: LaunchPlan, slurm: SlurmSettings) -> list[str]:
    """The command that starts an agent on each node, in lines."""
    assert plan.agent is not None
    jobs = f"{plan.run_dir}/{JOBS_DIR}"
    node = '"$SLURM_ARRAY_TASK_ID"' if slurm.kind == ARRAY else "%t"
    archive = protocol.CONTAINER_AGENT if plan.agent.in_image else f"{plan.run_dir}/agent.pyz"
    return [
        'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0',
        "--wait=0 --cpu-bind=none --mpi=none --export=ALL"
        + (" --gpu-bind=none" if slurm.gpus else ""),
        f"--output={quote(jobs.replace('%', '%%'))}/node-{node}.log --open-mode=append",
        # The launcher finds its step among those of the job around it by this name.
        *([f"--job-name={quote(plan.run_id)}"] if slurm.inside else []),
        *map(quote, _container(plan, slurm)),
        render_line((slurm.python, archive, f"{jobs}/{TASK_FILE}")),
    ]


# -- containers ----------------------------------------------------------------------------------


def _container(plan: LaunchPlan, slurm: SlurmSettings) -> list[str]:
    """What comes between srun's own options and the agent's command; empty without a container."""
    if slurm.container is None or slurm.image is None:
        return []
    workdir, mounts = plan.nodes[0].workdir, _mounts(plan, slurm)
    if slurm.container == PYXIS:
        return [
            f"--container-image={name_for_pyxis(slurm.image)}",
            f"--container-mounts={','.join(mounts)}",
            *([f"--container-workdir={workdir}"] if workdir else []),
            # The image's entrypoint may start something else, and home is not part of a plan.
            *("--no-container-entrypoint", "--no-container-mount-home"),
        ]
    return [
        *("apptainer", "exec", "--no-home"),
        *(["--nv"] if slurm.gpus else []),
        *(word for mount in mounts for word in ("--bind", mount)),
        *(["--pwd", workdir] if workdir else []),
        name_for_apptainer(slurm.image),
    ]


def _mounts(plan: LaunchPlan, slurm: SlurmSettings) -> list[str]:
    """``SOURCE:TARGET[:ro]``, as both runtimes take it; the run's folders keep their paths."""
    pairs = [(plan.run_dir, plan.run_dir, "")]
    if not PurePosixPath(plan.checkpoint_dir).is_relative_to(plan.run_dir):
        pairs.append((plan.checkpoint_dir, plan.checkpoint_dir, ""))
    pairs += [(m.source, m.target, ":ro" if m.read_only else "") for m in slurm.mounts]
    for path in (path for source, target, _ in pairs for path in (source, target)):
        if re.search("[:,]", path):
            raise InputError(
                f"{path} cannot be mounted: {slurm.container} takes : and , for separators",
                "use a folder without them",
            )
    return [f"{source}:{target}{mode}" for source, target, mode in pairs]


def name_for_pyxis(image: str) -> str:
    """``registry.org#train:1`` for ``registry.org/train:1``; files and other names unchanged."""
    first, _, rest = image.removeprefix("docker://").partition("/")
    is_registry = first == "localhost" or re.search("[.:]", first)
    if not rest or not is_registry or "#" in first or image.startswith("."):
        return image.removeprefix("docker://")
    return f"{first}#{rest}"


def name_for_apptainer(image: str) -> str:
    """``docker://IMAGE`` for an image in a registry; files and other sources unchanged."""
    is_file = image.startswith(("/", ".")) or image.endswith((".sif", ".img", ".sqsh"))
    return image if is_file or "://" in image else f"docker://{image}"
