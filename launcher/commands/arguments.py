"""What several commands take, and how each says it: jobs, runs, folders, this program's name."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.api.choose_target import name_here, room_of, rooms, targets_of_jobs
from launcher.contract import protocol, typed
from launcher.contract.errors import InputError

if TYPE_CHECKING:
    from launcher.api.planning import PlannedRun
    from launcher.job.file import Override
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder

RUN_ROOT = Path("runs")
OVERRIDES = ("nnodes", "nproc_per_node", "max_restarts", "image", "code")
"""Keys of the job file that have an option of their own; ``--set`` takes all others."""


# -- what is added to a parser ----------------------------------------------------------------


def add_command(
    commands: Any,
    name: str,
    handler: Callable[[argparse.Namespace], int],
    text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
) -> None:
    """A command called ``name``; ``handler`` takes the arguments and returns the exit code.

    ``add_arguments`` gives its parser what it takes.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler, options=parser._option_string_actions)
    parser.add_argument(
        "--runs",
        default=os.environ.get("LAUNCHER_RUNS") or str(RUN_ROOT),
        metavar="DIR",
        help="folder of the run folders (default: ./runs)",
    )
    add_arguments(parser)


def add_job_file(
    parser: argparse.ArgumentParser, *, optional: bool = False, again: bool = False
) -> None:
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
        action=_OneModule,
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
        "--max-restarts", metavar="N", help="how often failed workers are started again"
    )
    parser.add_argument("--image", metavar="REF", help="the container image; it needs torch")
    parser.add_argument(
        "--code", metavar="DIR", help="folder of the code, or: image (the image holds it)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the job file, such as resources.shm=2Gi; may be repeated",
    )


class _OneModule(argparse.Action):
    """``-m``, which argparse would take twice and keep the last."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if (first := namespace.module) is not None:
            raise InputError(
                f"-m {first} and -m {values}: a run has one module",
                "what is for the training goes behind --: "
                + typed.command("run", "-m", first, "--", "-m", values),
            )
        namespace.module = values


def add_job(parser: argparse.ArgumentParser) -> None:
    """A job file, where it shall run and what it goes on from."""
    add_job_file(parser, again=True)
    add_target(parser, "what the machine has")
    parser.add_argument(
        "--resume", metavar="RUN", help="go on from the checkpoints of an earlier run"
    )
    parser.usage = f"{parser.prog} JOB [options] [-- training arguments]"


def add_target(
    parser: argparse.ArgumentParser, default: str, of: Literal["job", "doctor"] = "job"
) -> None:
    """Where a job shall run, and the options of all targets."""
    *names, last = targets_of_jobs()
    parser.add_argument(
        "--on", metavar="TARGET", help=f"{', '.join(names)} or {last} (default: {default})"
    )
    for room in rooms():
        room.add_options(parser, of)


def add_run(parser: argparse.ArgumentParser) -> None:
    """A run, by its id."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=protocol.LATEST_LINK,
        help="run id, its beginning, or latest (default); on a cluster also the job's name",
    )
    # A run that another machine started is found on its target.
    parser.add_argument(
        "--on",
        choices=[room.name for room in rooms() if room.finds_runs],
        help="look for the run there first; on a cluster also for a job's name",
    )
    for room in rooms():
        room.add_options(parser, "run")


# -- what is read from the arguments ------------------------------------------------------------


def read_job(arguments: argparse.Namespace, otherwise: str = "") -> JobSpec:
    """The job file with its overrides, under the engine that the environment allows.

    ``otherwise`` is the text of a job file for where none is named.
    """
    from dataclasses import replace

    from launcher.api.choose_target import choose_engine
    from launcher.job.file import parse_job
    from launcher.job.script import SCRIPT_ENDINGS
    from launcher.yamlfile.problem import FileError

    text, file = _read_text(arguments, otherwise)
    overrides = _read_overrides(arguments)
    try:
        job = parse_job(text, file, overrides)
    except FileError as error:
        known = (*SCRIPT_ENDINGS, ".yaml", ".yml", ".json")
        if file.endswith(known) or not Path(file).is_file():
            raise
        *others, last = error.problems
        fix = "; ".join(filter(None, (last.fix, "a script's name ends in .py")))
        raise FileError([*others, replace(last, fix=fix)]) from None
    return choose_engine(job, os.environ)


def is_job_named(arguments: argparse.Namespace) -> bool:
    """Whether a script, a module, a job file or an earlier run was named."""
    return any(getattr(arguments, name, None) is not None for name in ("job", "module", "again"))


def words_of_job_named(arguments: argparse.Namespace) -> list[str]:
    """The script, module, job file or earlier run as it was typed."""
    if getattr(arguments, "again", None) is not None:
        return ["--again", arguments.again]
    return [arguments.job] if arguments.module is None else ["-m", arguments.module]


def _earlier(arguments: argparse.Namespace) -> RunFolder | None:
    """The run that is to run again."""
    if getattr(arguments, "again", None) is None:
        return None
    from launcher.runs.folder import find_run

    run = find_run(run_root(arguments), arguments.again)
    arguments.again = run.run_id  # ``latest`` is another run by the time it is printed
    return run


def _read_text(arguments: argparse.Namespace, otherwise: str = "") -> tuple[str, str]:
    """The text of the job file, or one made for the script or module, and what it is called.

    Read once: the job file may be a pipe.
    """
    if "text_and_file" not in arguments:
        arguments.text_and_file = _read_text_now(arguments, otherwise)
    text, file = arguments.text_and_file
    return text, file


def _read_text_now(arguments: argparse.Namespace, otherwise: str) -> tuple[str, str]:
    from launcher.code.place import IN_IMAGE
    from launcher.job import script
    from launcher.yamlfile.source import read_text

    if (earlier := _earlier(arguments)) is not None:
        from launcher.api.planning import read_job_of

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
    from launcher.job.file import option_override, parse_override

    settings = [*arguments.set]
    settings += ["agent.in_image=false"] if getattr(arguments, "embed", False) else []
    overrides = [parse_override(setting) for setting in settings]
    for name, given in arguments.given.items():
        for key, value in given.settings.items():
            overrides.append(option_override(f"--{key}", value, name))
    for key in OVERRIDES:
        value = getattr(arguments, key)
        if value is not None:
            overrides.append(option_override(f"--{key.replace('_', '-')}", value))
    return overrides


def place_of(key: tuple[str | int, ...], arguments: argparse.Namespace) -> str:
    """``file:line`` of a key of the job, the option that gave it, or the file alone."""
    from launcher.job.file import find_place
    from launcher.job.script import is_script

    text, file = _read_text(arguments)
    place = find_place(key, text, file, _read_overrides(arguments))
    is_made = arguments.module is not None or is_script(file)
    return file if is_made and place == f"{file}:1" else place


def target_named(arguments: argparse.Namespace) -> str | None:
    """The name of the target that the command line asks for; None where it names none."""
    named = (name for name, given in arguments.given.items() if given.is_named)
    return arguments.on or next(named, None)


def planned(arguments: argparse.Namespace, *, preview: bool = False) -> PlannedRun:
    """Where the job will run, and the plan of a new run there.

    ``preview``: for a target that is asked nothing to render a job, without chance.
    """
    root, forced, again = run_root(arguments), target_named(arguments), _earlier(arguments)
    if again and not forced:
        forced = again.read_plan().target
    forced = forced or name_here(os.environ)
    # Opened first: some targets begin to connect, which takes as long as all the imports.
    opened = room_of(forced).open(root, arguments) if forced else None

    from launcher.api.planning import note_no_checkpoint, plan_job, resume_job

    job = read_job(arguments)
    if arguments.resume:
        job, arguments.resume = resume_job(job, root, arguments.resume, opened)
    run = plan_job(
        job,
        root,
        on=forced,
        opened=opened,
        again=again,
        extra_args=arguments.extra,
        detached=getattr(arguments, "detach", False),
        preview=preview,
    )
    if arguments.resume and not run.choice.target.traits.sends_code:
        run.choice.target.notes += note_no_checkpoint(job, arguments.resume)
    if run.plan.image is None:
        run.choice.target.notes += _only_for_containers(arguments)
    return run


def _only_for_containers(arguments: argparse.Namespace) -> Iterator[str]:
    """Lines about options that change nothing where nodes are processes without a container."""
    given = ["--code image"] if arguments.code == "image" else []
    given += [f"--image {arguments.image}"] if arguments.image else []
    for setting in arguments.set:
        key = setting.partition("=")[0]
        if key.partition(".")[0] in ("image", "mounts"):
            given.append(f"--set {key}")
    for option in given:
        yield f"{option} is for containers, and these nodes are processes: it has no use here"


def find(arguments: argparse.Namespace) -> RunFolder:
    """The run that was named, in a folder here or where it runs. Raises ``InputError``.

    Of a run of a target without a folder here, what it returns is gone when the command ends.
    """
    from launcher.runs.folder import find_run

    root = run_root(arguments)
    for room in rooms():
        if room.name in rooms_of_runs(arguments) and (run := room.find_run(arguments, root)):
            return run
    try:
        return find_run(root, arguments.run)
    except InputError as error:
        for room in rooms():
            if (run := room.find_run(arguments, root, error)) is not None:
                return run
        raise


def rooms_of_runs(arguments: argparse.Namespace) -> list[str]:
    """The targets on which the options say that runs are to be looked for."""
    return [name for name, given in arguments.given.items() if given.names_runs]


def run_root(arguments: argparse.Namespace) -> Path:
    """The folder of the run folders, as it was given."""
    return Path(arguments.runs)


def shown(path: Path) -> str:
    """A path as people type it: from the current folder, if it lies below."""
    with contextlib.suppress(ValueError, OSError):  # OSError: the current folder is gone
        return str(path.relative_to(Path.cwd()))
    return str(path)
