"""``run`` and ``render``: a job file becomes a run, or the text of one."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands.arguments import (
    add_command,
    add_job,
    planned,
    shown,
    words_of_job_named,
)
from launcher.commands.printed_commands import options_of_job
from launcher.contract import typed
from launcher.contract.errors import ExitCode, TargetError

if TYPE_CHECKING:
    from launcher.api.choose_target import Choice
    from launcher.api.planning import PlannedRun
    from launcher.follow.console import Console
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.runs.folder import RunFolder


STREAMS = """The workers' stdout goes to stdout; their stderr and the launcher's own lines go to
stderr. With more than one worker every line has the prefix [node/rank]."""


def add(commands: Any) -> None:
    """Adds the commands to the program's parser."""
    text = "start a job, follow it, exit with its outcome"
    add_command(commands, "run", _run, text, _add_to_run)
    text = "print what would be run, and do nothing"
    add_command(commands, "render", _render, text, _add_to_render)


def _add_to_run(run: argparse.ArgumentParser) -> None:
    add_job(run)
    run.epilog = STREAMS
    run.add_argument(
        "--detach", action="store_true", help="follow in the background, print the run id"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="show the agents' own lines too")


def _add_to_render(render: argparse.ArgumentParser) -> None:
    add_job(render)
    render.add_argument("--json", action="store_true", help="print the launch plan as JSON")
    render.add_argument(
        "--embed",
        action="store_true",
        help="with the node agent in the text, for images and machines that do not hold it",
    )


def _run(arguments: argparse.Namespace) -> int:
    # Before all other imports: a target may start something that takes as long as they do.
    planned_run = planned(arguments)
    from launcher.api import launch

    if arguments.detach:
        # Its output goes to a file, which is never full for a while, and a fork takes no threads.
        return _run_in_background(planned_run, launch.open_console(sys.stderr))
    shows = typed.command("logs", planned_run.plan.run_id)
    with launch.open_streams(shows=shows) as console:
        return _run_here(arguments, planned_run, console)


def _run_in_background(planned_run: PlannedRun, console: Console) -> int:
    from launcher.api import launch

    run, choice = _create(planned_run, console), planned_run.choice
    with launch.ended_if_interrupted(run):
        launch.follow_in_background(run, planned_run.plan, choice.target, console.note)
        _note_left_behind(choice, run.path.parent, console.note)
    console.note(f"detached; see: {typed.command('logs', '--follow', run.run_id)}")
    print(run.run_id, flush=True)
    return int(ExitCode.OK)


def _run_here(arguments: argparse.Namespace, planned_run: PlannedRun, console: Console) -> int:
    from launcher.api import launch
    from launcher.runs.summary import render_summary

    run, choice, plan = _create(planned_run, console), planned_run.choice, planned_run.plan
    outcome = launch.follow_here(
        run,
        plan,
        choice.target,
        console,
        verbose=arguments.verbose,
        # Looks at every process of the machine: while the agent starts, that costs no time.
        on_submitted=functools.partial(_note_left_behind, choice, run.path.parent, console.note),
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


def _create(planned_run: PlannedRun, console: Console) -> RunFolder:
    choice, plan = planned_run.choice, planned_run.plan
    runs = Path(plan.run_dir).parent
    made = "" if runs.exists() else f"; made the folder {shown(runs)} for its runs"
    run = planned_run.create()
    console.note(f"running on {choice.why}{made}")
    while choice.target.notes:
        console.note(choice.target.notes.pop(0))
    console.note(f"run {run.run_id}: {_size_of(plan)}; folder {shown(run.path)}")
    return run


def _render(arguments: argparse.Namespace) -> int:
    planned_run = planned(arguments, preview=True)
    choice, plan = planned_run.choice, planned_run.plan
    made_by = shlex.join(["launcher", *sys.argv[1:]])
    text = choice.target.preview(plan, made_by, embed=arguments.embed)
    for note in choice.target.notes:
        print(f"note: {note}", file=sys.stderr)
    sys.stdout.write(plan.to_json() if arguments.json else text)
    return int(ExitCode.OK)


def _note_left_behind(choice: Choice, runs: Path, note: Callable[[str], None]) -> None:
    """Names what a dead launcher has left on the target, where its death is proven.

    A run whose folder or launcher cannot be seen from here may still be followed elsewhere.
    """
    from launcher.runs.folder import RunFolder

    try:
        live_runs = choice.target.live_runs()
    except TargetError:
        return  # An engine that fails in this moment must not end the run that has just started.
    for live in live_runs:
        run = RunFolder(Path(live.run_dir))
        if run.run_id == live.run_id and (proof := run.launcher_death()):
            fix = typed.command("stop", live.run_id, "--runs", str(run.path.parent))
            if run.path.parent == runs.absolute():
                fix = typed.command("stop", live.run_id)
            note(f"left behind: {live.run_id}; its launcher has died ({proof}); end it: {fix}")


def _size_of(plan: LaunchPlan) -> str:
    node = plan.nodes[0]
    nodes = f"{node.min_nodes}:{node.max_nodes}" if plan.is_elastic else str(node.max_nodes)
    return f"nnodes {nodes} x nproc_per_node {node.nproc_per_node} on {plan.accelerator}"
