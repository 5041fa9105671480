"""The commands in the order of ``--help``: their options and defaults, their help, and which
function does each.

Imported for every command and for ``--help``: what a command needs for its work is imported with
the module of its function, which the command line loads by name.
"""

from __future__ import annotations

import functools
import os
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from launcher.api.choose_target import rooms
from launcher.commands.parsing.options import add_clean, add_job, add_job_file, add_run, add_target
from launcher.commands.parsing.parser import natural, seconds

SHELLS = ("bash", "zsh", "fish")
PROBE_LIMIT_S = 120.0
"""How long ``doctor``'s probe in the nodes may take."""
IDLE_LIMIT_S = 1800.0
"""How long nodes of ``hold`` wait without a run before they end."""
TOP_INTERVAL_S = 1.0
PROFILE_STEPS = 5
PROFILE_S = 10.0
"""How long ``profile`` records a script without steps, and how long steps may take."""
STREAMS = """The workers' stdout goes to stdout; their stderr and the launcher's own lines go to
stderr. With more than one worker every line has the prefix [node/rank]."""
OF_NODE = """Started once on each node: srun --ntasks-per-node=1 launcher node train.py, mpirun -N 1
launcher node train.py, mpiexec -ppn 1 launcher node train.py. Each process finds out from its
environment which node it is, and how many there are. Under any other starter set
LAUNCHER_NODE_INDEX to 0, 1, ... on the nodes, with the same --nnodes and --run-id on all. All nodes
must see the folder of the runs. The exit code is that of the node's agent.
launcher docs inside-an-allocation"""
OF_WHY = """RUN may also be a folder, such as a part of a run's or torchrun's --log-dir, or one
log; - is stdin: torchrun ... 2>&1 | tee log | launcher why -. It reads long logs from both ends,
and says what it did not read. launcher docs CAUSE tells of each cause."""
OF_IMPORT = """Launch lines are those of torchrun, accelerate, deepspeed, horovodrun, mpirun, srun
and docker run; files are batch scripts, PyTorchJobs, TrainJobs, what accelerate config wrote, and
hostfiles. Words without a place in a job file are named at its top. launcher docs import"""
OF_HOLD = """A job gives the hold its resources, and what it imports beforehand (agent.preload); its
command is not run. Then, as often as you like: launcher run train.py --in NAME.
launcher docs interactive"""
OF_EXEC = """Each line has the prefix [node]; the exit code is the highest of the nodes. Without a
program it opens a terminal in node 0, or in --node. Into
containers it goes by docker exec, into pods by kubectl exec, to Slurm's nodes by a step.
launcher docs interactive"""
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
    """Adds the command ``name``, which the function ``handler`` (``MODULE:NAME``) carries out.

    The function takes the arguments. It returns the exit code (None for 0), or the text to print
    and the exit code. ``add_arguments`` adds the command's arguments to its parser.
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


# -- what one command takes ----------------------------------------------------------------------


def _add_to_run(run: ArgumentParser) -> None:
    add_job(run)
    run.epilog = STREAMS
    run.add_argument(
        "--detach", action="store_true", help="follow in the background, print the run id"
    )
    run.add_argument(
        "--in", dest="hold", metavar="NAME", help="on the nodes of a hold: launcher hold"
    )
    run.add_argument(
        "--fresh", action="store_true", help="with --in: new interpreters, which import torch anew"
    )
    run.add_argument(
        "--debug",
        action="append",
        type=natural,
        metavar="R",
        help="breakpoint() in rank R stops in pdb in this terminal",
    )
    run.add_argument(
        "--debug-port", type=natural, metavar="N", help="in an editor, by debugpy, at port N here"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="show the agents' own lines too")


def _add_to_hold(hold: ArgumentParser) -> None:
    add_job_file(hold, optional=True)
    add_target(hold, "docker for a job with an image, else local")
    hold.usage = f"{hold.prog} --name NAME [JOB] [options]"
    hold.epilog = OF_HOLD
    hold.add_argument("--name", required=True, metavar="NAME", help="what run --in calls it by")
    hold.add_argument(
        "--idle-limit",
        type=seconds,
        default=IDLE_LIMIT_S,
        metavar="S",
        help=f"seconds without a run after which it ends (default: {IDLE_LIMIT_S:g})",
    )


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
    listing.add_argument("--long", action="store_true", help="with the size of each run's folder")
    listing.add_argument("--json", action="store_true")
    listing.add_argument(
        "--html", metavar="FILE", help="also write a page of all runs, ended ones too"
    )
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
        "--with", dest="with_run", metavar="RUN2", help="put another run beside it in the page"
    )


def _add_to_top(top: ArgumentParser) -> None:
    add_run(top)
    top.add_argument(
        "--interval",
        type=seconds,
        default=TOP_INTERVAL_S,
        metavar="S",
        help="between two looks (%(default)s)",
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
        " comes first. The run goes on as before. launcher docs hangs tells what a container needs."
    )
    stacks.add_argument("--rank", type=natural, metavar="R", help="of one rank only")
    stacks.add_argument(
        "--native", action="store_true", help="the frames of C too; pauses workers for a moment"
    )
    stacks.add_argument("--all-threads", action="store_true", help="not the main threads alone")
    stacks.add_argument("--json", action="store_true")


def _add_to_exec(command: ArgumentParser) -> None:
    add_run(command)
    command.usage = f"{command.prog} [RUN] [options] [-- PROGRAM [arguments]]"
    command.epilog = OF_EXEC
    command.add_argument("--node", type=natural, metavar="N", help="in one node alone (0-based)")


def _add_to_profile(profile: ArgumentParser) -> None:
    add_run(profile)
    profile.epilog = (
        "A training with fabric_train, also in a Trainer, traces its next steps by torch.profiler;"
        " of any other script py-spy records some seconds. ui.perfetto.dev and speedscope.app"
        " show the files. docs/seeing.md"
    )
    profile.add_argument(
        "--steps",
        type=natural,
        default=PROFILE_STEPS,
        metavar="N",
        help=f"(default: {PROFILE_STEPS})",
    )
    profile.add_argument(
        "--seconds",
        type=seconds,
        default=PROFILE_S,
        metavar="S",
        help=f"of a script without steps; and how long the steps may take (default: {PROFILE_S:g})",
    )


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
    stop.epilog = (
        "Without RUN: the newest run that goes on; the others that go on are named. A hold ends by"
        " its name unless a run uses it, by its id in any case."
    )
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


def _add_to_check(check: ArgumentParser) -> None:
    check.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="training scripts, a job file for its script, or manifests; - is stdin",
    )
    check.add_argument("--json", action="store_true")


def _add_to_import(imports: ArgumentParser) -> None:
    imports.epilog = OF_IMPORT
    imports.usage = (
        f"{imports.prog} FILE [-o job.yaml] [-- train.py ARGUMENTS], or SCRIPT [-- ARGUMENTS], or"
        " -- LAUNCH LINE"
    )
    imports.add_argument(
        "file", metavar="FILE", nargs="?", help="a script or file, a quoted line, or - (stdin)"
    )
    imports.add_argument("-o", "--output", metavar="FILE", help="write it, where no such file is")


def _add_to_docs(docs: ArgumentParser) -> None:
    docs.add_argument(
        "page", metavar="NAME", nargs="?", help="none: a list; schema: the job file's JSON Schema"
    )


def _add_to_completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


COMMANDS: tuple[tuple[str, str, str, Callable[[ArgumentParser], None]], ...] = (
    ("run", "run:run", "start a job, follow it, exit with its outcome", _add_to_run),
    ("hold", "hold:hold", "keep nodes with torch imported, for runs to come", _add_to_hold),
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
        "tell in a few lines what happened first, where, why, and what to do",
        _add_to_why,
    ),
    ("logs", "runs:logs", "print a run's output, each line with its node and rank", _add_to_logs),
    (
        "stacks",
        "stacks:stacks",
        "show where all ranks of a run stand, and which one the others wait for",
        _add_to_stacks,
    ),
    (
        "exec",
        "programs:exec_in",
        "run a program in the nodes of a run, or open a terminal in one",
        _add_to_exec,
    ),
    (
        "profile",
        "profile:profile",
        "write a profile of each rank of a run that goes on",
        _add_to_profile,
    ),
    ("clean", "clean:clean", "remove runs that have ended, and what they left", add_clean),
    ("stop", "runs:stop", "end a run and remove what is left of it", _add_to_stop),
    ("scale", "runs:scale", "change the number of nodes of an elastic run", _add_to_scale),
    (
        "doctor",
        "doctor:doctor",
        "check whether a target is fit for a job, and say how to mend it",
        _add_to_doctor,
    ),
    (
        "import",
        "imports:import_job",
        "print the job file for a script, a launch line, a batch script, a PyTorchJob or a config",
        _add_to_import,
    ),
    (
        "check",
        "check:check",
        "find what breaks in a training script or Kubernetes manifests",
        _add_to_check,
    ),
    (
        "docs",
        "docs:docs",
        "print a page of the documentation, a section of one, such as a cause of why, or schema",
        _add_to_docs,
    ),
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
