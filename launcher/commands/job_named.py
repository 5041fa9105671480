"""The job that the arguments name, read and planned: options over the job file, ``--again``,
``--resume``, ``--in``.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from launcher.api.choose_target import choose_engine, room_of
from launcher.api.starting.planning import (
    PlannedRun,
    note_no_checkpoint,
    plan_job,
    read_job_of,
    resume_job,
)
from launcher.commands.parsing.arguments import open_named, run_root
from launcher.contract.errors import InputError
from launcher.job import script
from launcher.job.file import (
    Override,
    env_override,
    find_place,
    option_override,
    parse_job,
    parse_override,
)
from launcher.job.script import SCRIPT_ENDINGS, is_script
from launcher.job.spec import JobSpec
from launcher.job.values import IN_IMAGE
from launcher.plan.agent_task import TRAINING, Purpose
from launcher.runs.folder import RunFolder, find_run
from launcher.yamlfile.problem import FileError
from launcher.yamlfile.source import read_text

KNOWN_ENDINGS = (*SCRIPT_ENDINGS, ".yaml", ".yml", ".json")
OVERRIDES = ("name", "nnodes", "nproc_per_node", "devices", "max_restarts", "image", "code")
"""Keys of the job file that have an option of their own; ``--set`` takes all others."""


def read_job(arguments: argparse.Namespace, otherwise: str = "") -> JobSpec:
    """The job file with its overrides, under the engine that the environment allows.

    ``otherwise`` is the text of the job file that is used if none is named.
    """
    # Kept for ``place_of``, as the job file may be a pipe.
    arguments.text, arguments.file = _read_text(arguments, otherwise)
    try:
        job = parse_job(arguments.text, arguments.file, _read_overrides(arguments))
    except FileError as error:
        if arguments.file.endswith(KNOWN_ENDINGS) or not Path(arguments.file).is_file():
            raise
        *others, last = error.problems
        fix = "; ".join(filter(None, (last.fix, "a script's name ends in .py")))
        raise FileError([*others, replace(last, fix=fix)]) from None
    return choose_engine(job, os.environ)


def _earlier(arguments: argparse.Namespace) -> RunFolder | None:
    """The run that ``--again`` names."""
    if getattr(arguments, "again", None) is None:
        return None
    run = find_run(run_root(arguments), arguments.again)
    arguments.again = run.run_id  # ``latest`` is another run by the time it is printed
    return run


def _read_text(arguments: argparse.Namespace, otherwise: str) -> tuple[str, str]:
    """The text of the job file, or one made for the script or module, and what it is called."""
    if (earlier := _earlier(arguments)) is not None:
        return read_job_of(earlier)
    if arguments.module is not None:
        return script.write_job(("-m", arguments.module)), f"-m {arguments.module}"
    if arguments.job is None:
        return otherwise, "no job file"
    if not script.is_script(arguments.job):
        return read_text(arguments.job), arguments.job
    if arguments.code != IN_IMAGE:
        held = f"; if {arguments.image} holds it: --code image" if arguments.image else ""
        script.check_script(arguments.job, held)
    return script.write_job((arguments.job,)), arguments.job


def _read_overrides(arguments: argparse.Namespace) -> list[Override]:
    settings = [*arguments.set]
    settings += ["agent.in_image=false"] if getattr(arguments, "embed", False) else []
    overrides = [parse_override(setting) for setting in settings]
    overrides += [env_override(given, os.environ) for given in arguments.env]
    for name, given in arguments.given.items():
        for key, value in given.settings.items():
            overrides.append(option_override(f"--{key}", value, name))
    for key in OVERRIDES:
        value = getattr(arguments, key, None)
        if value is not None:
            overrides.append(option_override(f"--{key.replace('_', '-')}", value))
    return overrides


def place_of(key: tuple[str | int, ...], arguments: argparse.Namespace) -> str:
    """``file:line`` of a key of the job, the option that gave it, or the file alone."""
    file = arguments.file
    place = find_place(key, arguments.text, file, _read_overrides(arguments))
    is_made = arguments.module is not None or is_script(file)
    return file if is_made and place == f"{file}:1" else place


def planned(
    arguments: argparse.Namespace, *, preview: bool = False, purpose: Purpose = TRAINING
) -> PlannedRun:
    """Where the job will run, and the plan of a new run there.

    ``preview``: as in ``plan_job``.
    """
    root, again, opened = run_root(arguments), _earlier(arguments), open_named(arguments)
    if again and opened is None and getattr(arguments, "hold", "") is None:
        arguments.hold = again.read_plan().hold.rpartition("-")[0]
    if name := getattr(arguments, "hold", None):
        # It imports what manages runs, which a render does not need.
        from launcher.api.starting.holding import enter_hold, find_hold

        hold = find_hold(root, name)
        opened = opened or room_of(hold.read_plan().target).open(root, arguments)
        opened = enter_hold(hold, opened, fresh=arguments.fresh)
    elif getattr(arguments, "fresh", False):
        what = "--fresh goes with --in NAME; without a hold, interpreters are always new"
        raise InputError(what, "leave it out")
    if again and opened is None:
        opened = room_of(again.read_plan().target).open(root, arguments)
    job = read_job(arguments)
    if arguments.resume:
        job, arguments.resume = resume_job(job, root, arguments.resume, opened)
    run = plan_job(
        job,
        root,
        opened=opened,
        again=again,
        extra_args=arguments.extra,
        detached=getattr(arguments, "detach", False),
        preview=preview,
        purpose=purpose,
    )
    if arguments.resume:
        is_here = not run.choice.target.traits.sends_code
        run.choice.target.notes += note_no_checkpoint(job, arguments.resume, is_here=is_here)
    if run.plan.image is None and (arguments.image or arguments.code == IN_IMAGE):
        what = "--image and --code image are ignored"
        why = "the nodes of this target are processes, not containers"
        run.choice.target.notes.append(f"{what}: {why}")
    return run
