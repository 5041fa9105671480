"""Options that several commands share, with their help: those of a job, a target, a run, and of
``clean``.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Literal

from launcher.api.choose_target import rooms, targets_of_jobs
from launcher.commands.parsing.parser import age, natural
from launcher.contract import protocol
from launcher.contract.causes import OVER

STATES = sorted(OVER)
"""How a run may have ended."""


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
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for the workers; without VALUE this shell's, which is written nowhere if "
        "its name is that of a credential; may be repeated",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the job file, such as resources.shm=2Gi; may be repeated",
    )


def add_job(parser: ArgumentParser) -> None:
    """A job file, where it shall run, and which run it resumes."""
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
        help="run id, its beginning, the job's name (its run that goes on), or latest (default)",
    )
    add_place(parser)


def add_clean(parser: ArgumentParser) -> None:
    """Which runs shall be removed."""
    parser.epilog = (
        "A run is removed if all that is asked for is true of it. A run that goes on stays, and so"
        " does one whose checkpoints a run that stays has gone on from. With --hosts or --namespace"
        " also what runs left there. launcher docs storage"
    )
    parser.add_argument(
        "--older-than", type=age, metavar="AGE", help="that ended so long ago: 7d, 12h, 30min, 90s"
    )
    parser.add_argument("--keep", type=natural, metavar="N", help="all but the newest N")
    parser.add_argument(
        "--state", action="append", choices=STATES, help="that ended so; may be repeated"
    )
    parser.add_argument("--yes", action="store_true", help="without asking")
    for room in rooms():
        room.add_options(parser, "run")


def add_place(parser: ArgumentParser) -> None:
    """Where to look for a run."""
    # A run that another machine started is found on its target.
    parser.add_argument(
        "--on",
        choices=[room.name for room in rooms() if room.finds_runs],
        help="look for the run there first; on a cluster also for a job's name",
    )
    for room in rooms():
        room.add_options(parser, "run")
