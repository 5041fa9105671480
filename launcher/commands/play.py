"""What ``play`` does: a PyTorchJob in local containers, followed on this terminal."""

from __future__ import annotations

import argparse
import os

from launcher.api.launch import open_streams
from launcher.commands.printed_commands import given
from launcher.contract import typed
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, InputError
from launcher.follow.console import Console
from launcher.follow.signals import raise_on_signals
from launcher.manifests.play import Machine, Play, plan_play
from launcher.manifests.player import LABEL, Player
from launcher.manifests.source import Together, Value, object_name, parse_manifest
from launcher.plan.launch_plan import new_run_id
from launcher.targets.docker.engine import Engine
from launcher.targets.docker.target import has_nvidia
from launcher.targets.machine import read_gpus
from launcher.yamlfile.source import read_text


def play(arguments: argparse.Namespace) -> int:
    """Plays the manifest; returns the exit code."""
    item, together = _read_job(arguments)
    engine = Engine(SystemClock(), label=LABEL)
    info = engine.read_info()
    gpus = read_gpus() if has_nvidia(info) else ()
    machine = Machine(cpu_count=info["NCPU"], gpus=gpus, environ=os.environ)
    play = plan_play(item, together, machine, arguments.image)
    # A reader that pauses must not keep pods from being restarted, nor from being removed.
    options = given(arguments, ("job", "image"))
    shows = f"{typed.command('play', *arguments.files, *options)} > FILE"
    with open_streams(shows=shows) as console:
        return _play_here(play, engine, console)


def _play_here(play: Play, engine: Engine, console: Console) -> int:
    for note in play.notes:
        console.note(note)
    names = ", ".join(pod.name for pod in play.pods)
    console.note(f"{play.job_name}: {names}; {play.success_rule}")
    play_id = new_run_id(play.job_name)
    with raise_on_signals():
        player = Player(play, play_id, engine, SystemClock(), console)
        try:
            outcome = player.play()
        finally:
            player.close()
    console.note(f"{'Succeeded' if outcome.succeeded else 'Failed'}: {outcome.why}")
    return int(ExitCode.OK if outcome.succeeded else ExitCode.TRAINING_FAILED)


def _read_job(arguments: argparse.Namespace) -> tuple[Value, Together]:
    objects = [item for file in arguments.files for item in parse_manifest(read_text(file), file)]
    jobs = [item for item in objects if item["kind"].text == "PyTorchJob"]
    if arguments.job is not None:
        jobs = [item for item in jobs if object_name(item) == arguments.job]
    if len(jobs) != 1:
        names = ", ".join(object_name(job) for job in jobs)
        found = f"{len(jobs)} PyTorchJobs{f': {names}' if names else ''}"
        fix = "--job NAME" if jobs else "a file with kind: PyTorchJob, such as k8s/job.yaml"
        raise InputError(f"{', '.join(arguments.files)}: found {found}", fix)
    return jobs[0], Together(objects=tuple(objects))
