"""Renders a plan as the batch script of its jobs, which also works by ``sbatch`` alone.

What the script relies on was measured: docs/decisions/0023-the-batch-script-of-slurm.md.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import PurePosixPath

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.errors import ExitCode, InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import MAKE_TOKEN, render_base64
from launcher.targets.shell import quote, render_line
from launcher.targets.slurm.client import comment_of
from launcher.targets.slurm.settings import JOBS_DIR, TASK_FILE, SlurmSettings

ARRAY, PYXIS = "array", "pyxis"
_NAME = re.compile("@([A-Z_]+)@")
WIDTH = 96
"""The length at which long lines are wrapped."""
SRUN_SLACK_S = 20
"""How long srun may outlive its agents, or the grace of a stop; less than NOTICE_MARGIN_S."""
LOOK_S = 5
"""Seconds between two looks at the folder for agents that have ended while srun goes on."""
TRIES, TRY_S = 30, 20
"""How often, and how many seconds apart, a controller that is away is asked to requeue."""
STALE_PREFIXES = (
    *("SRUN_", "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_GPU_BIND", "SLURM_STEP_"),
    *("PMI_", "PMIX_", "OMPI_COMM_WORLD_"),
)
"""Variables of an outer job, and options that srun would take from the environment."""
STALE_OPTIONS = (
    *("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_EXACT"),
    *("SLURM_RELATIVE", "SLURM_LABELIO", "SLURM_HOSTFILE", "SLURM_OVERCOMMIT", "SLURM_MPI_TYPE"),
)
"""Options of srun that sbatch passes on from the shell in which it was called."""

_NAMES = """\
set -u +e +o pipefail  # What the lines above have set ends with them.
RUN=@RUN@; S=$RUN/slurm
CHECKPOINT_DIR=@CHECKPOINT_DIR@
@JOB@
STARTS=${SLURM_RESTART_COUNT:-0}; KEY=$JOB.$STARTS
export @STOP_FILE@=$S/$KEY.stop
@UNSET@
say() { echo "launcher: $*"; }
nap() { read -rt "$1" <> <(:) || :; }  # A sleep that leaves no process behind.
tell() { echo "$2" 1<>"$S/.$KEY.$1" && mv -f "$S/.$KEY.$1" "$S/$KEY.$1"; }
new() { [ -s "$1" ] || { "${@:2}" >"$S/.$KEY.new" && mv "$S/.$KEY.new" "$1"; }; }
end() { tell ended "$1 $2"; exit "$1"; }
fail() { say "error: $1"; end 2 over; }
mkdir -p "$S" "$RUN/nodes" "$RUN/meet" "$CHECKPOINT_DIR" || exit 2
: >>"$S/$KEY.stop"  # Empty until somebody asks: on NFS, nodes may see a new file a minute late.
printf '%60s\n' "" >"$S/.$KEY.ended"  # The last word has its place, also when the disk is full.
tell started "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | xargs)"
"""
_JOB = "JOB=$SLURM_JOB_ID"
_ELEMENT = """\
# Not SLURM_JOB_ID: one element has the array's, and requeueing it ends all other elements.
JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"""
_AGENT = """\
[ -s "$RUN/agent.pyz" ] || fail "no $RUN/agent.pyz: copy it there, or render with --embed"
"""
_EMBEDDED = """\
new "$RUN/agent.pyz" base64 -d <<'END'
@ARCHIVE@
END
"""
_TASK = """\
new "$S/node-plan.json" cat <<'END'
@TASK@
END
new "$RUN/artifact.sh" cat "$0"
[ -s "$RUN/token" ] || {  # Elements start at the same time: the first one's counts.
  (@MAKE_TOKEN@ >"$S/.$KEY.token"); ln "$S/.$KEY.token" "$RUN/token"; rm -f "$S/.$KEY.token"
} 2>/dev/null
"""
_CODE = """\
if [ ! -d "$RUN/code" ]; then  # Whole or not at all: elements start at the same time.
  [ -s "$RUN/code.tar.gz" ] || fail "no $RUN/code.tar.gz, made with: "@MAKE_CODE@
  mkdir "$S/.$KEY.code" && tar -xzf "$RUN/code.tar.gz" --no-same-owner -C "$S/.$KEY.code" &&
    mv -T "$S/.$KEY.code" "$RUN/code" || [ -d "$RUN/code" ] || fail "cannot unpack code.tar.gz"
fi
"""
_ASKED = """\
grep -qsxE 'stop-requested|interrupted' "$S/$JOB".*.stop && end 143 over
"""
_RUN_OVER = """\
code=$(cat "$S"/*.ended 2>/dev/null | sort -r | grep -xm1 '[01] over') &&
  { say "the run is over"; end "${code% over}" over; }
"""
_IDLE = """\
idle() {  # How many starts there were since the last file below CHECKPOINT_DIR.
  for file in "$S"/@EACH@.started; do
    find "$CHECKPOINT_DIR" -name generations -prune -o -type f -newer "$file" -print -quit |
      grep -q . || echo
  done | wc -l
}
none="starts in a row left nothing new in $CHECKPOINT_DIR; fix: save there, or raise slurm.time"
[ "$(idle)" -le @IDLE_LIMIT@ ] || { say "error: $(idle) $none"; end 1 over; }
"""
_START = """\
told() {  # The exit codes of this start's agents, from the outcomes that they leave.
  find @OUTCOMES@ -name outcome.json -newer "$S/$KEY.started" \\
    -exec grep -ohE '(^  |"reason": "[a-z-]+", )"exit_code": [0-9]+' {} + 2>/dev/null
}
reason() { cat "$S/$KEY.stop" 2>/dev/null; }
asked() { [ -n "$(reason)" ] || echo preempted >"$S/$KEY.stop"; }
watch() {  # Ends an srun that hangs, or that waits for Slurm to notice a lost node.
  local left=@GRACE@
  until [ "$(told | wc -l)" -ge "$SLURM_JOB_NUM_NODES" ] || [ "$left" -le 0 ]; do
    nap @LOOK@
    [ -z "$(reason)" ] || left=$((left - @LOOK@))
  done
  nap @SLACK@
  say "srun goes on without its agents: killed"
  kill -KILL "$srun"
}
by_slurm=; trap by_slurm=1 TERM
trap asked USR1; [ -z "${early:-}" ] || asked
@SRUN@ &
srun=$!; watch &
# A trap ends wait early.
{ while kill -0 "$srun"; do wait "$srun"; done; wait "$srun"; code=$?; kill $!; } 2>/dev/null
code=$(told | awk -v code="$code" '
  { n = $NF + 0; if (n == 0) ok = 1; else if (n < 128) failed = n; else if (n > most) most = n }
  END { print failed ? failed : ok ? 0 : most ? most : code }')
"""
_END = """\
# After a full disk too: the next start would find it as full.
[ "${code:=143}" -ge 128 ] && [ "$code" -ne @DISK_FULL@ ] || end "$code" over
why=$(reason)
if [ "$by_slurm" ]; then  # Slurm ended this start. Where it requeues the job, Restarts counts it.
  job=$(scontrol show job -o "$JOB") || end "$code" requeued  # The queue tells what is true.
  [[ $job =~ \\ Restarts=([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -gt "$STARTS" ] &&
    end "$code" requeued
  # A requeue would bring back what scancel ended.
  [[ $job == *\\ Reason=TimeLimit\\ * ]] || end "$code" over
  why=${why:-preempted}
fi
case $why in
  "") tell fault "$code"; set -- "$S"/@EACH@.fault
    [ $# -le @MAX_REQUEUES@ ] || { say "error: $# faults of the platform"; end "$code" over; } ;;
  preempted) [ "$(idle)" -lt 2 ] || { say "error: $(idle) $none"; end 1 over; } ;;
  *) end "$code" over ;;
esac
trap "" TERM  # A requeue ends all processes of this start, the command that asks for it too.
for try in {1..@TRIES@}; do
  said=$(scontrol requeue "$JOB" 2>&1) && end "$code" requeued
  case $said in
    *"pending execution"*) end "$code" requeued ;;
    *ontact*|*onnect*|*"imed out"*) say "$said"; nap @TRY@; continue ;;
  esac
  say "$said; another job follows instead"
  next=$(sbatch --parsable --dependency=afterany:"$JOB"@ARRAY@ "$RUN/artifact.sh") || break
  echo @ELEMENT@ >"$S/${next%%;*}.job"
  end "$code" requeued
done
say "error: the job could not be requeued; fix: sbatch $RUN/artifact.sh"
end "$code" over
"""


def render_script(plan: LaunchPlan, *, embed: bool = False) -> str:
    """The script; ``embed``: with the agent's archive in it.

    Raises ``InputError`` for a folder that a container's mounts cannot express.
    """
    own = SlurmSettings.of(plan)
    assert plan.agent is not None, "Slurm's nodes need the agent"
    beside = [protocol.AGENT_ARCHIVE] if not (plan.agent.in_image or embed) else []
    beside += ["code.tar.gz"] if plan.code else []
    needs = f" put {' and '.join(beside)} beside it;" if beside else ""
    by = "bash" if own.inside else "sbatch"
    templates = [
        _NAMES,
        "" if plan.agent.in_image else _EMBEDDED if embed else _AGENT,
        _TASK,
        _CODE if plan.code else "",
        _ASKED,
        _RUN_OVER if own.kind == ARRAY else "",
        _IDLE,
        _START,
        _END if own.requeue else 'end "$code" over\n',
    ]
    words = _words(plan, own, embed=embed)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {quote_option(option)}" for option in _options(plan, own)),
        f"# By hand: mkdir -p {quote(f'{plan.run_dir}/{JOBS_DIR}')};{needs} {by} THIS-FILE",
        *(["trap early=1 USR1  # The end of its time is near."] if own.notice_s else []),
        *own.setup,
    ]
    return "\n".join(lines) + "\n" + _NAME.sub(lambda m: words[m[1]], "".join(templates))


def _options(plan: LaunchPlan, own: SlurmSettings) -> list[str]:
    """The options of sbatch."""
    first = plan.nodes[0]
    least, most = first.min_nodes, first.max_nodes
    # Without --no-kill Slurm requeues a job that lost a node, even the node of its script.
    shape, log = [f"--nodes={most}", "--ntasks-per-node=1"], "%j"
    if least < most:
        # With --ntasks-per-node Slurm would count tasks for the minimum, and give no more nodes.
        shape = [f"--nodes={least}-{most}", "--no-kill"]
    if own.kind == ARRAY:
        array = f"--array=0-{len(plan.nodes) - 1}"
        shape, log = ["--nodes=1", array, "--ntasks-per-node=1"], "%A_%a"
    folder = f"{plan.run_dir}/{JOBS_DIR}".replace("%", "%%")
    if own.inside:
        return []
    return [
        f"--job-name={plan.job_name}",
        f"--comment={comment_of(plan.run_id)}",
        *shape,
        "--requeue" if own.requeue else "--no-requeue",
        *([f"--signal=B:USR1@{own.notice_s}"] if own.notice_s else []),
        f"--output={folder}/{log}.log",
        "--open-mode=append",
        *own.options,
    ]


def quote_option(option: str) -> str:
    """An option as sbatch reads it from a script, where only few characters are special."""
    return quote(option) if re.search(r"[\s#'\"\\]", option) else option


def _words(plan: LaunchPlan, own: SlurmSettings, *, embed: bool) -> dict[str, str]:
    """The text that replaces each ``@NAME@`` in the templates."""
    assert plan.agent is not None
    is_array = own.kind == ARRAY
    element = '"$SLURM_ARRAY_TASK_ID"'
    make_code = ("tar", "-czf", "code.tar.gz", "-C", plan.code.root if plan.code else "", ".")
    return {
        "RUN": quote(plan.run_dir),
        "CHECKPOINT_DIR": quote(plan.checkpoint_dir),
        "STOP_FILE": protocol.STOP_FILE,
        "JOB": _ELEMENT if is_array else _JOB,
        "UNSET": _unset(),
        "ARCHIVE": "\n".join(render_base64()) if embed else "",
        "MAKE_TOKEN": MAKE_TOKEN,
        "TASK": NodeTask(node=plan.nodes[0], settings=plan.agent).to_json().rstrip("\n"),
        "MAKE_CODE": quote(render_line(make_code)),
        "EACH": f"*_{element}.*" if is_array else "*",
        # How many starts in a row may leave no checkpoint: a preemption may come early.
        "IDLE_LIMIT": str(1 + max(2, own.max_requeues)),
        "OUTCOMES": f'"$RUN/nodes/"{element} -maxdepth 2'
        if is_array
        else '"$RUN/nodes" -maxdepth 3',
        "GRACE": str(plan.stop_grace_s),
        # A look reads the folders of all nodes.
        "LOOK": str(LOOK_S + len(plan.nodes) // 20),
        "SLACK": str(SRUN_SLACK_S),
        "SRUN": _srun(plan, own),
        "DISK_FULL": str(ExitCode.DISK_FULL.value),
        "MAX_REQUEUES": str(own.max_requeues),
        "TRIES": str(TRIES),
        "TRY": str(TRY_S),
        "ARRAY": f" --array={element}" if is_array else "",
        "ELEMENT": element if is_array else '""',
    }


def _unset() -> str:
    """Variables of an outer job or of the submitting shell, which would win over the plan."""
    prefixes = (f"${{!{prefix}@}}" for prefix in STALE_PREFIXES)
    names = " ".join(("unset", *sorted(protocol.STALE_VARIABLES), *STALE_OPTIONS, *prefixes))
    return " \\\n  ".join(textwrap.wrap(names, WIDTH, break_on_hyphens=False))


def _srun(plan: LaunchPlan, own: SlurmSettings) -> str:
    """The command that starts an agent on each node; bash expands only its own variables."""
    assert plan.agent is not None
    log = "node-$SLURM_ARRAY_TASK_ID" if own.kind == ARRAY else "node-%t"
    archive = protocol.CONTAINER_AGENT if plan.agent.in_image else f"{plan.run_dir}/agent.pyz"
    agent = (own.python, archive, f"{plan.run_dir}/{JOBS_DIR}/{TASK_FILE}")
    lines = [
        'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0',
        "--wait=0 --cpu-bind=none --mpi=none --export=ALL"
        + (" --gpu-bind=none" if own.gpus else ""),
        f'--output="${{S//%/%%}}/{log}.log" --open-mode=append',
        # The launcher finds its step among those of the job around it by this name.
        *([f"--job-name={quote(plan.run_id)}"] if own.inside else []),
        *map(quote, _container(plan, own)),
        render_line(agent),
    ]
    return " \\\n  ".join(lines)


# -- containers ----------------------------------------------------------------------------------


def _container(plan: LaunchPlan, own: SlurmSettings) -> list[str]:
    """What comes between srun's own options and the agent's command; empty without a container."""
    if own.container is None or own.image is None:
        return []
    workdir, mounts = plan.nodes[0].workdir, _mounts(plan, own)
    if own.container == PYXIS:
        return [
            f"--container-image={name_for_pyxis(own.image)}",
            f"--container-mounts={','.join(mounts)}",
            *([f"--container-workdir={workdir}"] if workdir else []),
            # The image's entrypoint may start something else, and home is not part of a plan.
            *("--no-container-entrypoint", "--no-container-mount-home"),
        ]
    return [
        *("apptainer", "exec", "--no-home"),
        *(["--nv"] if own.gpus else []),
        *(word for mount in mounts for word in ("--bind", mount)),
        *(["--pwd", workdir] if workdir else []),
        name_for_apptainer(own.image),
    ]


def _mounts(plan: LaunchPlan, own: SlurmSettings) -> list[str]:
    """``SOURCE:TARGET[:ro]``, as both runtimes take it; the run's folders keep their paths."""
    pairs = [(plan.run_dir, plan.run_dir, "")]
    if not PurePosixPath(plan.checkpoint_dir).is_relative_to(plan.run_dir):
        pairs.append((plan.checkpoint_dir, plan.checkpoint_dir, ""))
    pairs += [(m.source, m.target, ":ro" if m.read_only else "") for m in own.mounts]
    for path in (path for source, target, _ in pairs for path in (source, target)):
        if re.search("[:,]", path):
            raise InputError(
                f"{path} cannot be mounted: {own.container} takes : and , for separators",
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
