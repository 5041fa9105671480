"""``run``: a job file becomes a run."""

from __future__ import annotations

import argparse
import functools
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.api import launch
from launcher.api.choose_target import Choice
from launcher.api.debugging import debugged
from launcher.api.planning import PlannedRun
from launcher.commands.arguments import shown, words_of_job_named
from launcher.commands.debug import read_debugging
from launcher.commands.job_named import planned
from launcher.commands.printed_commands import options_of_job
from launcher.contract import typed
from launcher.contract.errors import ExitCode, TargetError
from launcher.follow.console import Console
from launcher.manifests.scripts.check import count_findings
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.summary import render_summary


def run(arguments: argparse.Namespace) -> int:
    """Starts a job and follows it; the exit code."""
    purpose, port = read_debugging(arguments)
    planned_run = planned(arguments, purpose=purpose)
    if arguments.detach:
        # Its output goes to a file, which is never full for a while, and a fork takes no threads.
        return _run_in_background(planned_run, Console(sys.stderr))
    shows = typed.command("logs", planned_run.plan.run_id)
    with launch.open_streams(shows=shows) as console:
        return _run_here(arguments, planned_run, console, port)


def _run_in_background(planned_run: PlannedRun, console: Console) -> int:
    run, choice = create_told(planned_run, console), planned_run.choice
    with launch.ended_if_interrupted(run):
        launch.follow_in_background(run, planned_run.plan, choice.target, console.note)
        _note_after_start(planned_run, run.path.parent, console.note)
    console.note(f"detached; see: {typed.command('logs', '--follow', run.run_id)}")
    print(run.run_id, flush=True)
    return int(ExitCode.OK)


def _run_here(
    arguments: argparse.Namespace,
    planned_run: PlannedRun,
    console: Console,
    port: socket.socket | None,
) -> int:
    run, choice, plan = create_told(planned_run, console), planned_run.choice, planned_run.plan
    with debugged(run, plan, choice.target, console, port):
        outcome = launch.follow_here(
            run,
            plan,
            choice.target,
            console,
            verbose=arguments.verbose,
            # While the agent starts, what these look at costs no time.
            on_submitted=functools.partial(
                _note_after_start, planned_run, run.path.parent, console.note
            ),
        )
    summary = render_summary(
        outcome,
        folder=shown(run.path),
        job=(
            *words_of_job_named(arguments),
            *("--on", plan.target),
            *options_of_job(arguments),
        ),
        extra=arguments.extra,
        resumes_by_run=not choice.target.traits.own_checkpoints,
        image="" if planned_run.job.image else plan.image or "",
        python=plan.own.own_python if plan.own else "",
        resumed=arguments.resume or "",
    )
    console.line(summary)
    return outcome.exit_code


def create_told(planned_run: PlannedRun, console: Console) -> RunFolder:
    """Makes the run's folder, and tells where it runs."""
    choice, plan = planned_run.choice, planned_run.plan
    runs = Path(plan.run_dir).parent
    made = "" if runs.exists() else f"; made the folder {shown(runs)} for its runs"
    run = planned_run.create()
    console.note(f"running on {choice.why}{made}")
    while choice.target.notes:
        console.note(choice.target.notes.pop(0))
    console.note(f"run {run.run_id}: {_size_of(plan)}; folder {shown(run.path)}")
    return run


def _note_after_start(planned_run: PlannedRun, runs: Path, note: Callable[[str], None]) -> None:
    _note_left_behind(planned_run.choice, runs, note)
    job = planned_run.job
    script = Path(job.workdir or "", job.command[0])
    if script.suffix == ".py" and (count := count_findings(script)):
        found = f"{count} finding{'' if count == 1 else 's'}"
        note(f"{found}: {typed.command('check', str(script))}")


def _note_left_behind(choice: Choice, runs: Path, note: Callable[[str], None]) -> None:
    """Names what a dead launcher has left on the target, where its death is proven.

    A run whose folder or launcher cannot be seen from here may still be followed elsewhere.
    """
    try:
        live_runs = choice.target.live_runs()
    except TargetError:
        return  # An engine that fails in this moment must not end the run that has just started.
    for live in live_runs:
        run = RunFolder(Path(live.run_dir))
        if run.run_id == live.run_id and (proof := run.launcher_death()):
            is_here = run.path.parent == runs.absolute()
            where = () if is_here else ("--runs", str(run.path.parent))
            fix = typed.command("stop", live.run_id, *where)
            note(f"left behind: {live.run_id}; its launcher has died ({proof}); end it: {fix}")


def _size_of(plan: LaunchPlan) -> str:
    node = plan.nodes[0]
    nodes = f"{node.min_nodes}:{node.max_nodes}" if plan.is_elastic else str(node.max_nodes)
    return f"nnodes {nodes} x nproc_per_node {node.nproc_per_node} on {plan.accelerator}"
