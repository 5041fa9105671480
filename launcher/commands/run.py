"""``run``: starts a job and follows it: ``--detach``, ``--debug``, notes at the start (left-behind
runs, findings of ``check``), the summary at the end.
"""

from __future__ import annotations

import argparse
import functools
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.api.choose_target import Choice
from launcher.api.debugging import debugged, listen
from launcher.api.starting import launch
from launcher.api.starting.planning import PlannedRun
from launcher.commands.job_named import planned
from launcher.commands.parsing.arguments import words_of_job_named
from launcher.commands.parsing.printed_commands import options_of_job
from launcher.contract import typed
from launcher.contract.errors import InputError, TargetError
from launcher.contract.protocol import OUTCOME_FILE
from launcher.follow.console import Console
from launcher.plan.agent_task import TRAINING, Purpose
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, has_checkpoints
from launcher.runs.outcome import Outcome
from launcher.runs.summary import render_summary


def run(arguments: argparse.Namespace) -> int:
    """Starts a job and follows it; returns the exit code."""
    purpose, port = _read_debugging(arguments)
    planned_run = planned(arguments, purpose=purpose)
    if arguments.detach:
        # No buffer: the output goes to a file, which never pauses, and a fork loses threads.
        _run_in_background(planned_run, Console(sys.stderr))
        return 0
    shows = typed.command("logs", planned_run.plan.run_id)
    with launch.open_streams(shows=shows) as console:
        return _run_here(arguments, planned_run, console, port)


def _read_debugging(arguments: argparse.Namespace) -> tuple[Purpose, socket.socket | None]:
    """What is to be debugged, and the port for an editor. Raises ``InputError``."""
    ranks, port = arguments.debug, arguments.debug_port
    if not ranks:
        if port is not None:
            what = f"--debug-port {port} needs --debug RANK"
            raise InputError(what, f"--debug 0 --debug-port {port}")
        return TRAINING, None
    if len(ranks) > 1:
        given = " ".join(f"--debug {rank}" for rank in ranks)
        raise InputError(f"{given}: one rank at a time", f"--debug {ranks[0]}")
    if arguments.detach:
        what = "--debug needs this process in this terminal: not with --detach"
        raise InputError(what, "one of both")
    if port is not None:
        return Purpose(debug_rank=ranks[0], debug_editor=True), listen(port)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        what = "--debug needs a terminal for pdb: stdin or stderr is none"
        raise InputError(what, f"call it in a terminal, or --debug {ranks[0]} --debug-port 5678")
    return Purpose(debug_rank=ranks[0]), None


def _run_in_background(planned_run: PlannedRun, console: Console) -> None:
    run, choice = create_told(planned_run, console), planned_run.choice
    with launch.ended_if_interrupted(run):
        launch.follow_in_background(run, planned_run.plan, choice.target, console.note)
        _note_after_start(planned_run, run.path.parent, console.note)
    console.note(f"detached; see: {typed.command('logs', '--follow', run.run_id)}")
    print(run.run_id, flush=True)


def _run_here(
    arguments: argparse.Namespace,
    planned_run: PlannedRun,
    console: Console,
    port: socket.socket | None,
) -> int:
    run, plan, target = (
        create_told(planned_run, console),
        planned_run.plan,
        planned_run.choice.target,
    )
    kept = launch.keep_signals()
    with debugged(run, plan, target, console, port):
        outcome = launch.follow_here(
            run,
            plan,
            target,
            console,
            verbose=arguments.verbose,
            # These checks cost no time while the agent starts.
            on_submitted=functools.partial(
                _note_after_start, planned_run, run.path.parent, console.note
            ),
            kept=kept,
        )
    return _tell_end(arguments, planned_run, run, outcome, console)


def _tell_end(
    arguments: argparse.Namespace,
    planned_run: PlannedRun,
    run: RunFolder,
    outcome: Outcome,
    console: Console,
) -> int:
    """Prints the summary; returns the exit code."""
    plan = planned_run.plan
    there = {
        "outcome": (run.path / OUTCOME_FILE).exists(),
        "logs": bool(run.consoles() or run.worker_logs()),
    }
    summary = render_summary(
        replace(outcome, checkpoint_dir=_find_checkpoints(plan)),
        folder=typed.shown(run.path),
        job=(
            *words_of_job_named(arguments),
            *(("--in", arguments.hold) if arguments.hold else ("--on", plan.target)),
            *options_of_job(arguments),
        ),
        extra=arguments.extra,
        has_checkpoints=bool(has_checkpoints(plan.checkpoint_dir)),
        resumes_by_run=not planned_run.choice.target.traits.own_checkpoints,
        resumed=arguments.resume or "",
        left=[name for name, is_there in there.items() if is_there],
    )
    console.line(summary)
    return outcome.exit_code


def _find_checkpoints(plan: LaunchPlan) -> str:
    """Where checkpoints are; empty if there are none that a person could look at."""
    folder = plan.checkpoint_dir
    if host := next((machine.name for machine in plan.machines), ""):
        return f"{folder} on {host}"
    return folder if has_checkpoints(folder) else ""


def create_told(planned_run: PlannedRun, console: Console) -> RunFolder:
    """Makes the run's folder, and notes where the run will run."""
    choice, plan = planned_run.choice, planned_run.plan
    runs = Path(plan.run_dir).parent
    made = "" if runs.exists() else f"; made the folder {typed.shown(runs)} for its runs"
    run = planned_run.create()
    console.note(f"running on {choice.why}{made}")
    while choice.target.notes:
        console.note(choice.target.notes.pop(0))
    console.note(f"run {run.run_id}: {plan.size}; folder {typed.shown(run.path)}")
    return run


def _note_after_start(planned_run: PlannedRun, runs: Path, note: Callable[[str], None]) -> None:
    _note_left_behind(planned_run.choice, runs, note)
    # Imported only now, as the nodes start meanwhile.
    from launcher.manifests.checks.rules import ERROR
    from launcher.manifests.scripts.check import glance_at

    job = planned_run.job
    script = Path(job.workdir or "", job.command[0])
    if script.suffix == ".py" and (breaches := glance_at(script)):
        errors = sum(breach.rule.severity == ERROR for breach in breaches)
        summary = f"{len(breaches)} finding{'' if len(breaches) == 1 else 's'}"
        summary += f", of which {errors} may fail or hang" if errors else ""
        note(f"{summary}: {typed.command('check', str(script))}")


def _note_left_behind(choice: Choice, runs: Path, note: Callable[[str], None]) -> None:
    """Names what a dead launcher has left on the target, if its death is proven.

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
