"""``doctor``: whether a target is fit for a job, before the job is run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from launcher.commands.arguments import (
    add_command,
    add_job_file,
    add_target,
    is_job_named,
    read_job,
    run_root,
    target_named,
)
from launcher.commands.parser import seconds
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError

LIMIT_S = 120.0


def add(commands: Any) -> None:
    """Adds the command to the program's parser."""
    text = "check whether a target is fit for a job, and say how to mend it"
    add_command(commands, "doctor", _doctor, text, _add_arguments)


def _add_arguments(doctor: argparse.ArgumentParser) -> None:
    add_job_file(doctor, optional=True)
    add_target(doctor, "as run chooses", "doctor")
    doctor.add_argument(
        "--limit",
        type=seconds,
        default=LIMIT_S,
        metavar="S",
        help="seconds for the probe in the nodes",
    )
    doctor.add_argument("--json", action="store_true")


def _doctor(arguments: argparse.Namespace) -> int:
    import json

    from launcher.api.doctor import diagnose, is_fit
    from launcher.doctor.finding import render_findings
    from launcher.follow.signals import raise_on_signals

    samples = (given.sample_job for given in arguments.given.values() if given.sample_job)
    sample = next((make() for make in samples), "") if not is_job_named(arguments) else ""
    if not is_job_named(arguments) and not sample:
        fix = (
            f"{typed.command('doctor', 'JOB')}; without one: "
            f"{typed.command('doctor', '--hosts', 'hosts.yaml')}, "
            f"or {typed.command('doctor', '--on', 'slurm')}"
        )
        raise InputError("no job file is named", fix)
    job = read_job(arguments, otherwise=sample)
    name = target_named(arguments) or _usual_target(job, run_root(arguments))
    with raise_on_signals():
        findings = list(diagnose(job, name, arguments.limit, arguments))
    if arguments.json:
        print(json.dumps([finding.to_jsonable() for finding in findings], indent=2))
    else:
        sys.stdout.write(render_findings(findings))
    return int(ExitCode.OK if is_fit(findings) else ExitCode.TRAINING_FAILED)


def _usual_target(job: Any, root: Path) -> str:
    from launcher.api.choose_target import choose_target

    return choose_target(job, None, root).facts.target
