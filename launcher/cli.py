"""The command line: parses, calls, prints. Each command imports what it needs itself."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__, contract
from launcher.errors import ExitCode, LauncherError

if TYPE_CHECKING:
    from launcher.choose import Choice
    from launcher.job import JobSpec
    from launcher.plan import LaunchPlan
    from launcher.runs import RunFolder

RUN_ROOT = Path("runs")
OVERRIDES = ("nnodes", "nproc_per_node", "max_restarts", "image")
"""Keys of the job file that have an option of their own; ``--set`` takes all others."""
EPILOG = """exit codes: 0 success, 1 the training failed, 2 bad input, 3 target not reachable,
130 interrupted, 137 a node was lost, 143 stopped. Docs: docs/job-file.md"""


def run_command(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code; errors become one to three lines."""
    own, extra = _split_extra(list(argv))
    parser = _parser()
    arguments = parser.parse_args(own)
    arguments.extra = tuple(extra)
    if extra and arguments.command not in ("run", "render"):
        parser.error(f"'--' and training arguments go with run and render, not {arguments.command}")
    try:
        return int(arguments.handler(arguments))
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; nothing was left running", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`launcher ps | head`): not an error of ours.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)


# -- commands -------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from launcher import launch
    from launcher.summary import render_summary

    choice, plan = _planned(arguments)
    console = launch.open_console(sys.stderr)
    console.note(f"running on {choice.why}")
    run = launch.create_run(plan, choice.target)
    console.note(f"run {run.run_id}: {_size_of(plan)}; folder {_shown(run.path)}")
    note_left_behind = functools.partial(_note_left_behind, choice, console.note)
    if arguments.detach:
        launch.follow_in_background(run, plan, choice.target)
        note_left_behind()
        console.note(f"detached; see: {_program()} logs --follow {run.run_id}")
        print(run.run_id)
        return int(ExitCode.OK)
    outcome = launch.follow_here(
        run,
        plan,
        choice.target,
        console,
        verbose=arguments.verbose,
        # Looks at every process of the machine: while the agent starts, that costs no time.
        on_submitted=note_left_behind,
    )
    summary = render_summary(
        outcome, folder=_shown(run.path), job_file=arguments.job, program=_program()
    )
    console.line(summary)
    return outcome.exit_code


def _render(arguments: argparse.Namespace) -> int:
    choice, plan = _planned(arguments)
    text = plan.to_json() if arguments.json else choice.target.render(plan).shell()
    sys.stdout.write(text)
    return int(ExitCode.OK)


def _env(arguments: argparse.Namespace) -> int:
    from launcher.by_hand import plan_by_hand, render_by_hand

    job = _read_job(arguments)
    plan = plan_by_hand(
        job,
        endpoint=arguments.rdzv_endpoint,
        node_rank=arguments.node_rank,
        local_addr=arguments.local_addr,
        run_root=str(_run_root(arguments).absolute()),
        cwd=str(Path.cwd()),
    )
    sys.stdout.write(render_by_hand(plan, arguments.node_rank))
    return int(ExitCode.OK)


def _ps(arguments: argparse.Namespace) -> int:
    from launcher.listing import list_runs, render_table

    rows = list_runs(_run_root(arguments), everything=arguments.all)
    if arguments.json:
        print(json.dumps([row.to_jsonable() for row in rows], indent=2))
    else:
        sys.stdout.write(render_table(rows))
    return int(ExitCode.OK)


def _status(arguments: argparse.Namespace) -> int:
    from launcher.listing import read_status, render_status

    run = _find(arguments)
    status = read_status(run)
    sys.stdout.write(
        json.dumps(status, indent=2) + "\n" if arguments.json else render_status(status)
    )
    return int(ExitCode.OK)


def _report(arguments: argparse.Namespace) -> int:
    from launcher.clock import SystemClock
    from launcher.postmortem import read_postmortem, render_postmortem

    told = read_postmortem(_find(arguments), SystemClock().wall())
    text = json.dumps(told, indent=2) + "\n" if arguments.json else render_postmortem(told)
    sys.stdout.write(text)
    return int(ExitCode.OK)


def _logs(arguments: argparse.Namespace) -> int:
    from launcher.listing import show_logs

    run = _find(arguments)
    show_logs(
        run, sys.stdout, follow=arguments.follow, rank=arguments.rank, agents=arguments.verbose
    )
    return int(ExitCode.OK)


def _stop(arguments: argparse.Namespace) -> int:
    from launcher.stopping import stop_run

    run = _find(arguments)
    print(stop_run(run, arguments.grace), file=sys.stderr)
    return int(ExitCode.OK)


def _scale(arguments: argparse.Namespace) -> int:
    from launcher.scaling import scale_run

    print(scale_run(_find(arguments), arguments.nodes), file=sys.stderr)
    return int(ExitCode.OK)


def _schema(arguments: argparse.Namespace) -> int:
    from launcher.jobfile import render_schema

    sys.stdout.write(render_schema())
    return int(ExitCode.OK)


# -- shared by commands -----------------------------------------------------------------------


def _read_job(arguments: argparse.Namespace) -> JobSpec:
    from launcher.choose import choose_engine
    from launcher.jobfile import option_override, parse_override, read_job

    overrides = [parse_override(setting) for setting in arguments.set]
    for key in OVERRIDES:
        value = getattr(arguments, key)
        if value is not None:
            overrides.append(option_override(f"--{key.replace('_', '-')}", value))
    return choose_engine(read_job(arguments.job, overrides), os.environ)


def _planned(arguments: argparse.Namespace) -> tuple[Choice, LaunchPlan]:
    from launcher.choose import choose_target
    from launcher.plan import new_run_id, plan_run

    job = _read_job(arguments)
    if arguments.resume:
        job = _resumed(job, arguments)
    choice = choose_target(job, arguments.on, _run_root(arguments))
    run_id = new_run_id(job.name, os.urandom(3))
    plan = plan_run(job, choice.facts, run_id=run_id, extra_args=arguments.extra)
    return choice, plan


def _resumed(job: JobSpec, arguments: argparse.Namespace) -> JobSpec:
    from launcher.runs import find_run

    earlier = find_run(_run_root(arguments), arguments.resume).read_plan()
    return job.model_copy(update={"checkpoint_dir": earlier.checkpoint_dir})


def _find(arguments: argparse.Namespace) -> RunFolder:
    from launcher.runs import find_run

    return find_run(_run_root(arguments), arguments.run)


def _note_left_behind(choice: Choice, note: Callable[[str], None]) -> None:
    from launcher.runs import RunFolder

    for live in choice.target.live_runs():
        if RunFolder(Path(live.run_dir)).launcher_pid() is None:
            fix = f"{_program()} stop {live.run_id}"
            note(f"left behind by a launcher that died: {live.run_id}; end it: {fix}")


def _size_of(plan: LaunchPlan) -> str:
    node = plan.nodes[0]
    nodes = f"{node.min_nodes}:{node.max_nodes}" if plan.is_elastic else str(node.max_nodes)
    return f"nnodes {nodes} x nproc_per_node {node.nproc_per_node} on {plan.accelerator}"


def _program() -> str:
    """How this command is called: by its name where a shell would find the same, else by path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m launcher"
    return called.name if shutil.which(called.name) == str(called) else _shown(called)


def _shown(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _run_root(arguments: argparse.Namespace) -> Path:
    return Path(arguments.runs)


# -- parser -----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher",
        description="Launches multi-node PyTorch training from one job file.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = _command(commands, "run", _run, "start a job, follow it, exit with its outcome")
    _add_job(run)
    run.add_argument(
        "--detach", action="store_true", help="follow in the background, print the run id"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="show the agents' own lines too")

    render = _command(commands, "render", _render, "print what would be run, and do nothing")
    _add_job(render)
    render.add_argument("--json", action="store_true", help="print the launch plan as JSON")

    env = _command(
        commands, "env", _env, 'print a node\'s settings for a shell: eval "$(launcher env ...)"'
    )
    _add_job_file(env)
    env.add_argument(
        "--node-rank", type=_natural, default=0, metavar="N", help="this node, 0-based"
    )
    env.add_argument("--rdzv-endpoint", metavar="HOST[:PORT]", help="where all nodes reach node 0")
    env.add_argument("--local-addr", metavar="HOST", help="where the others reach this node")

    listing = _command(commands, "ps", _ps, "list runs")
    listing.add_argument("-a", "--all", action="store_true", help="ended runs too")
    listing.add_argument("--json", action="store_true")

    _add_run_commands(commands)
    _command(commands, "schema", _schema, "print the job file's JSON Schema")
    return parser


def _add_run_commands(commands: Any) -> None:
    """Those that are about one run."""
    status = _command(commands, "status", _status, "show one run and its nodes")
    _add_run(status)
    status.add_argument("--json", action="store_true")

    report = _command(
        commands, "report", _report, "tell what happened: first cause, restarts, nodes, timeline"
    )
    _add_run(report)
    report.add_argument("--json", action="store_true")

    logs = _command(
        commands, "logs", _logs, "print a run's output, each line with its node and rank"
    )
    _add_run(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    logs.add_argument("--rank", type=_natural, metavar="R", help="of one rank only")
    logs.add_argument("-v", "--verbose", action="store_true", help="the agents' own lines too")

    stop = _command(commands, "stop", _stop, "end a run and remove what is left of it")
    _add_run(stop)
    stop.add_argument(
        "--grace", type=float, metavar="S", help="seconds until the kill (the job's own)"
    )

    scale = _command(commands, "scale", _scale, "change the number of nodes of an elastic run")
    _add_run(scale)
    scale.add_argument("nodes", type=_natural, metavar="N", help="from MIN to MAX of its nnodes")


def _command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    parser.add_argument(
        "--runs",
        default=os.environ.get("LAUNCHER_RUNS", str(RUN_ROOT)),
        metavar="DIR",
        help="folder of the run folders (default: ./runs)",
    )
    return parser


def _add_job_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="the job file, such as jobs/digits.yaml")
    parser.add_argument("--nnodes", metavar="N|MIN:MAX", help="override nnodes")
    parser.add_argument("--nproc-per-node", metavar="N", help="override nproc_per_node")
    parser.add_argument("--max-restarts", metavar="N", help="override max_restarts")
    parser.add_argument("--image", metavar="REF", help="override image")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override any key, such as resources.shm=2Gi; may be repeated",
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    _add_job_file(parser)
    parser.add_argument(
        "--on", metavar="TARGET", help="docker or local (default: what the machine has)"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on from the checkpoints of an earlier run"
    )
    parser.usage = f"{parser.prog} JOB [options] [-- training arguments]"


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=contract.LATEST_LINK,
        help="run id, its beginning, or latest (default)",
    )


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("not negative")
    return number


def _split_extra(argv: list[str]) -> tuple[list[str], list[str]]:
    """Words after the first ``--`` go to the training as they are."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]
