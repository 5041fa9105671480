"""What each command takes, and which function does it.

Imported for every command and for ``--help``: what a command needs for its work is imported with
the module of its function, which the command line loads by name.
"""

from __future__ import annotations

import functools
import os
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Literal

from launcher.api.choose_target import rooms, targets_of_jobs
from launcher.commands.parser import natural, seconds
from launcher.contract import protocol

SHELLS = ("bash", "zsh", "fish")
PROBE_LIMIT_S = 120.0
STREAMS = """The workers' stdout goes to stdout; their stderr and the launcher's own lines go to
stderr. With more than one worker every line has the prefix [node/rank]."""
OF_NODE = """Started once on each node: srun --ntasks-per-node=1 launcher node train.py, mpirun -N 1
launcher node train.py, mpiexec -ppn 1 launcher node train.py. Each process finds out from its
environment which node it is, and how many there are. Under any other starter set
LAUNCHER_NODE_INDEX to 0, 1, ... on the nodes, with the same --nnodes and --run-id on all. All nodes
must see the folder of the runs. The exit code is that of the node's agent.
docs/inside-an-allocation.md"""
OF_WHY = """RUN may also be a folder, such as a part of a run's or torchrun's --log-dir, or one
log; - is stdin: torchrun ... 2>&1 | tee log | launcher why -. It reads long logs from both ends,
and says what it did not read. docs/runbook.md has a section for each cause."""
OF_IMPORT = """Launch lines are those of torchrun, accelerate, deepspeed, horovodrun, mpirun, srun
and docker run; files are batch scripts, PyTorchJobs, TrainJobs, what accelerate config wrote, and
hostfiles. Words without a place in a job file are named at its top. docs/import.md"""
OF_BUILD = """The tag goes to stdout, all else to stderr. The requirements are those beside the
script, or at the top of its repository: requirements.txt, else pyproject.toml. A torch that the
base holds stays as it is."""


def add_command(
    commands: Any,
    name: str,
    handler: str,
    text: str,
    add_arguments: Callable[[ArgumentParser], None],
) -> None:
    """A command called ``name``, which the function ``handler`` (``MODULE:NAME``) does.

    The function takes the arguments and returns the exit code, and before it what is to be printed
    where it does not print itself. ``add_arguments`` gives the command's parser what it takes.
    """
    parser: ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler, options=parser._option_string_actions)
    parser.add_argument(
        "--runs",
        default=os.environ.get("LAUNCHER_RUNS") or "runs",
        metavar="DIR",
        help="folder of the run folders (default: ./runs)",
    )
    add_arguments(parser)


def add_commands(commands: Any) -> None:
    """Adds all commands, those of single targets last."""
    for name, handler, text, add_arguments in COMMANDS:
        add_command(commands, name, f"launcher.commands.{handler}", text, add_arguments)
    for room in rooms():
        room.add_commands(functools.partial(add_command, commands))


# -- what several commands take ------------------------------------------------------------------


def add_job_file(parser: ArgumentParser, *, optional: bool = False, again: bool = False) -> None:
    """A script, a module or a job file, and what overrides the keys of a job.

    ``again``: or an earlier run.
    """
    group = parser.add_mutually_exclusive_group(required=not optional)
    group.add_argument(
        "job", metavar="JOB", nargs="?", help="a script such as train.py, or a job file"
    )
    group.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        help="run a module as python -m does",
    )
    if again:
        group.add_argument(
            "--again", metavar="RUN", help="the job of an earlier run, with the code that it ran"
        )
    parser.add_argument(
        "--nnodes",
        metavar="N|MIN:MAX",
        help="nodes; with a range the run goes on while MIN are left",
    )
    parser.add_argument(
        "--nproc-per-node",
        metavar="N",
        help="processes on each node: a number, gpu, cpu or auto (default: auto, one for each GPU "
        "of the node, without GPUs one for each of its cores)",
    )
    parser.add_argument(
        "--devices",
        metavar="DEVICES",
        help="GPUs of each machine: 2, 1,3, -1 (all) or free:2 (unused); one process for each",
    )
    parser.add_argument(
        "--max-restarts", metavar="N", help="how often failed workers are started again"
    )
    parser.add_argument("--image", metavar="REF", help="the container image; it needs torch")
    parser.add_argument(
        "--code", metavar="DIR", help="folder of the code, or: image (the image holds it)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the job file, such as resources.shm=2Gi; may be repeated",
    )


def add_job(parser: ArgumentParser) -> None:
    """A job file, where it shall run and what it goes on from."""
    add_job_file(parser, again=True)
    add_target(parser, "docker for a job with an image, else local")
    parser.add_argument(
        "--resume", metavar="RUN", help="go on from the checkpoints of an earlier run"
    )
    parser.usage = f"{parser.prog} JOB [options] [-- training arguments]"


def add_target(parser: ArgumentParser, default: str, of: Literal["job", "doctor"] = "job") -> None:
    """Where a job shall run, and the options of all targets."""
    *names, last = targets_of_jobs()
    parser.add_argument(
        "--on", metavar="TARGET", help=f"{', '.join(names)} or {last} (default: {default})"
    )
    for room in rooms():
        room.add_options(parser, of)


def add_run(parser: ArgumentParser) -> None:
    """A run, by its id."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=protocol.LATEST_LINK,
        help="run id, its beginning, or latest (default); on a cluster also the job's name",
    )
    # A run that another machine started is found on its target.
    parser.add_argument(
        "--on",
        choices=[room.name for room in rooms() if room.finds_runs],
        help="look for the run there first; on a cluster also for a job's name",
    )
    for room in rooms():
        room.add_options(parser, "run")


# -- what one command takes ----------------------------------------------------------------------


def _add_to_run(run: ArgumentParser) -> None:
    add_job(run)
    run.epilog = STREAMS
    run.add_argument(
        "--detach", action="store_true", help="follow in the background, print the run id"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="show the agents' own lines too")


def _add_to_render(render: ArgumentParser) -> None:
    add_job(render)
    render.add_argument("--json", action="store_true", help="print the launch plan as JSON")
    render.add_argument(
        "--embed",
        action="store_true",
        help="with the node agent in the text, for images and machines that do not hold it",
    )


def _add_to_node(node: ArgumentParser) -> None:
    add_job_file(node)
    node.epilog = OF_NODE
    node.usage = f"STARTER {node.prog} JOB [options] [-- training arguments]"
    node.add_argument(
        "--run-id",
        metavar="ID",
        help="the run's id, the same on all nodes (default: the job's name and the scheduler's id)",
    )


def _add_to_build(build: ArgumentParser) -> None:
    build.epilog = OF_BUILD
    which = build.add_mutually_exclusive_group()
    which.add_argument(
        "job", metavar="JOB", nargs="?", help="a script or job file (default: all that is here)"
    )
    which.add_argument("-m", dest="module", metavar="MODULE", help="a module in place of a script")
    build.add_argument(
        "--code", metavar="DIR", help="the folder of the code, where another is meant"
    )
    build.add_argument(
        "--base", required=True, metavar="IMAGE", help="an image with Python and torch"
    )
    build.add_argument("--tag", required=True, metavar="REF", help="what the image shall be called")
    build.add_argument("--push", action="store_true", help="push it when it is built")
    build.add_argument(
        "--requirements", metavar="FILE", help="a requirements.txt or pyproject.toml"
    )
    build.add_argument(
        "--wheelhouse", metavar="DIR", help="install from the packages in it, without an index"
    )


def _add_to_ps(listing: ArgumentParser) -> None:
    listing.add_argument("-a", "--all", action="store_true", help="ended runs too")
    listing.add_argument("--json", action="store_true")
    listing.add_argument(
        "--on",
        choices=[room.name for room in rooms() if room.finds_runs == "alone"],
        help="the runs of a cluster, whoever started them",
    )
    for room in rooms():
        room.add_options(listing, "run")


def _add_to_status(status: ArgumentParser) -> None:
    add_run(status)
    status.add_argument("--json", action="store_true")


def _add_to_report(report: ArgumentParser) -> None:
    add_run(report)
    report.add_argument("--json", action="store_true")
    report.add_argument(
        "--html", metavar="FILE", help="also write it as one page, with pictures (matplotlib)"
    )
    report.add_argument(
        "--png", metavar="FILE", help="also draw loss, workers and failures over time (matplotlib)"
    )


def _add_to_top(top: ArgumentParser) -> None:
    add_run(top)
    top.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="between two looks (%(default)s)"
    )
    top.add_argument("--json", action="store_true", help="once, as data")


def _add_to_why(why: ArgumentParser) -> None:
    add_run(why)
    why.epilog = OF_WHY
    why.add_argument("--evidence", action="store_true", help="also the lines that it rests on")
    why.add_argument("--json", action="store_true")


def _add_to_stacks(stacks: ArgumentParser) -> None:
    add_run(stacks)
    stacks.epilog = (
        "Ranks that stand at the same place are one group; what is wrong between their collectives"
        " comes first. The run goes on as before. docs/hangs.md tells what a container needs."
    )
    stacks.add_argument("--rank", type=natural, metavar="R", help="of one rank only")
    stacks.add_argument(
        "--native", action="store_true", help="the frames of C too; pauses workers for a moment"
    )
    stacks.add_argument("--all-threads", action="store_true", help="not the main threads alone")
    stacks.add_argument("--json", action="store_true")


def _add_to_logs(logs: ArgumentParser) -> None:
    add_run(logs)
    logs.epilog = (
        "The workers' stdout goes to stdout; their stderr and the agents' lines to stderr. With"
        " --follow the exit code is the run's own; Ctrl-C ends the output, not the run."
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    logs.add_argument("--rank", type=natural, metavar="R", help="of one rank only")
    logs.add_argument("-v", "--verbose", action="store_true", help="the agents' own lines too")


def _add_to_stop(stop: ArgumentParser) -> None:
    add_run(stop)
    stop.epilog = "Without RUN: the newest run that goes on; the others that go on are named."
    stop.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="seconds until the kill (default: stop_grace_s of the job)",
    )
    stop.add_argument(
        "--keep", action="store_true", help="on Kubernetes: keep the job's object, suspended"
    )


def _add_to_scale(scale: ArgumentParser) -> None:
    add_run(scale)
    scale.add_argument("nodes", type=natural, metavar="N", help="from MIN to MAX of its nnodes")


def _add_to_doctor(doctor: ArgumentParser) -> None:
    add_job_file(doctor, optional=True)
    add_target(doctor, "as run chooses", "doctor")
    doctor.add_argument(
        "--limit",
        type=seconds,
        default=PROBE_LIMIT_S,
        metavar="S",
        help="seconds for the probe in the nodes",
    )
    doctor.add_argument("--json", action="store_true")


def _add_to_env(env: ArgumentParser) -> None:
    add_job_file(env, optional=True)
    env.add_argument(
        "--join", metavar="RUN", help="instead of a job: a script that adds a node to this run"
    )
    env.add_argument("--node-rank", type=natural, default=0, metavar="N", help="this node, 0-based")
    env.add_argument("--rdzv-endpoint", metavar="HOST[:PORT]", help="where all nodes reach node 0")
    env.add_argument("--local-addr", metavar="HOST", help="where the others reach this node")


def _add_to_check(check: ArgumentParser) -> None:
    check.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="training scripts, batch scripts, or manifests that are applied together; - is stdin",
    )
    check.add_argument("--json", action="store_true")


def _add_to_import(imports: ArgumentParser) -> None:
    imports.epilog = OF_IMPORT
    imports.usage = f"{imports.prog} FILE [-o job.yaml] [-- train.py ARGUMENTS], or -- LAUNCH LINE"
    imports.add_argument(
        "file", metavar="FILE", nargs="?", help="a file, a quoted line, or - (stdin)"
    )
    imports.add_argument("-o", "--output", metavar="FILE", help="write it, where no such file is")


def _add_to_init(init: ArgumentParser) -> None:
    init.usage = f"{init.prog} train.py [-o job.yaml] [-- ARGUMENTS]"
    init.add_argument("script", metavar="SCRIPT", help="the script that trains")
    init.add_argument(
        "-o", "--output", metavar="FILE", default="job.yaml", help="a new file (default: job.yaml)"
    )


def _add_to_play(play: ArgumentParser) -> None:
    play.epilog = "The pods' stdout goes to stdout; their stderr and what happens go to stderr."
    play.add_argument(
        "files", nargs="+", metavar="FILE", help="the job's manifest, and those it refers to"
    )
    play.add_argument("--job", metavar="NAME", help="which, where the files hold several")
    play.add_argument("--image", metavar="REF", help="instead of the manifest's image")


def _add_to_completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


COMMANDS: tuple[tuple[str, str, str, Callable[[ArgumentParser], None]], ...] = (
    ("run", "run:run", "start a job, follow it, exit with its outcome", _add_to_run),
    ("render", "render:render", "print what would be run, and do nothing", _add_to_render),
    (
        "node",
        "node:node",
        "be one node of a run, where srun, mpirun or another starter starts the nodes",
        _add_to_node,
    ),
    (
        "build",
        "build:build",
        "make an image from a base image, the requirements and the code",
        _add_to_build,
    ),
    ("ps", "runs:ps", "list runs", _add_to_ps),
    ("status", "runs:status", "show one run and its nodes", _add_to_status),
    ("top", "top:top", "watch a run: progress, nodes and events, in place", _add_to_top),
    (
        "report",
        "report:report",
        "tell what happened: first cause, restarts, nodes, timeline",
        _add_to_report,
    ),
    (
        "why",
        "why:why",
        "tell in five lines what happened first, where, why, and what to do",
        _add_to_why,
    ),
    ("logs", "runs:logs", "print a run's output, each line with its node and rank", _add_to_logs),
    (
        "stacks",
        "stacks:stacks",
        "show where all ranks of a run stand, and which one the others wait for",
        _add_to_stacks,
    ),
    ("stop", "runs:stop", "end a run and remove what is left of it", _add_to_stop),
    ("scale", "runs:scale", "change the number of nodes of an elastic run", _add_to_scale),
    (
        "doctor",
        "doctor:doctor",
        "check whether a target is fit for a job, and say how to mend it",
        _add_to_doctor,
    ),
    (
        "env",
        "env:env",
        'print a node\'s settings for a shell: eval "$(launcher env ...)"',
        _add_to_env,
    ),
    ("init", "imports:init", "write a job file for a script", _add_to_init),
    (
        "import",
        "imports:import_job",
        "print the job file for a launch line, a batch script, a PyTorchJob or a config",
        _add_to_import,
    ),
    (
        "check",
        "check:check",
        "find what breaks in a training script, a batch script or Kubernetes manifests",
        _add_to_check,
    ),
    (
        "play",
        "play:play",
        "run a PyTorchJob's manifest in local containers, as the training operator would",
        _add_to_play,
    ),
    ("schema", "schema:schema", "print the job file's JSON Schema", lambda parser: None),
    (
        "completion",
        "completion:completion",
        "print what makes TAB complete commands, runs and files: "
        'eval "$(launcher completion bash)"',
        _add_to_completion,
    ),
)
"""Each command's name, the function of this room that does it, its help, and what adds its
arguments; in the order of ``launcher --help``."""
