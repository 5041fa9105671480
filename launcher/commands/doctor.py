"""``doctor``: whether a target is fit for a job, before the job is run."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from launcher.api.choose_target import choose_target, room_of
from launcher.commands.job_named import read_job
from launcher.commands.parsing.arguments import is_job_named, run_root, target_named
from launcher.contract import typed
from launcher.contract.errors import ExitCode, InputError
from launcher.doctor.finding import is_fit, render_findings
from launcher.follow.signals import raise_on_signals


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the findings about the target; returns the exit code."""
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
    name = target_named(arguments) or choose_target(job, run_root(arguments)).facts.target
    with raise_on_signals(), tempfile.TemporaryDirectory(prefix="launcher-doctor-") as folder:
        findings = list(room_of(name).diagnose(job, Path(folder), arguments.limit, arguments))
    if arguments.json:
        print(json.dumps([finding.to_jsonable() for finding in findings], indent=2))
    else:
        sys.stdout.write(render_findings(findings))
    return int(ExitCode.OK if is_fit(findings) else ExitCode.TRAINING_FAILED)
