"""What several commands take, and how each says it: jobs, runs, folders, this program's name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands import cluster
from launcher.contract import protocol
from launcher.contract.errors import InputError

if TYPE_CHECKING:
    from launcher.api.open import Choice
    from launcher.job.file import Override
    from launcher.job.spec import JobSpec
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.runs.folder import RunFolder
    from launcher.targets.hosts.inventory import Inventory
    from launcher.targets.hosts.ssh import Ssh

RUN_ROOT = Path("runs")
OVERRIDES = ("nnodes", "nproc_per_node", "max_restarts", "image")
"""Keys of the job file that have an option of their own; ``--set`` takes all others."""


# -- what is added to a parser ----------------------------------------------------------------


def add_command(
    commands: Any, name: str, handler: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """A command called ``name``; ``handler`` takes the arguments and returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler, options=parser._option_string_actions)
    parser.add_argument(
        "--runs",
        default=os.environ.get("LAUNCHER_RUNS") or str(RUN_ROOT),
        metavar="DIR",
        help="folder of the run folders (default: ./runs)",
    )
    return parser


def add_job_file(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A job file and what overrides its keys."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?" if optional else None,
        help="the job file, such as jobs/digits.yaml",
    )
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


def add_job(parser: argparse.ArgumentParser) -> None:
    """A job file, where it shall run and what it goes on from."""
    add_job_file(parser)
    parser.add_argument(
        "--on",
        metavar="TARGET",
        help="docker, local, hosts or kubernetes (default: what the machine has)",
    )
    add_hosts(parser)
    cluster.add_place(parser)
    cluster.add_kind(parser)
    parser.add_argument(
        "--resume", metavar="RUN", help="go on from the checkpoints of an earlier run"
    )
    parser.usage = f"{parser.prog} JOB [options] [-- training arguments]"


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """The machines of target ``hosts``."""
    parser.add_argument(
        "--hosts",
        default=os.environ.get("LAUNCHER_HOSTS") or None,
        metavar="FILE|NAMES",
        help="hosts.yaml, a hostfile, or names such as gpu[1-4] (default: $LAUNCHER_HOSTS)",
    )
    parser.add_argument("--include", default="", metavar="HOSTS", help="only these: gpu1;gpu2:0,2")
    parser.add_argument("--exclude", default="", metavar="HOSTS", help="all but these")
    parser.add_argument(
        "--accept-new-host-keys",
        action="store_true",
        help="remember the keys of hosts never seen before; a changed key stays refused",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """A run, by its id."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=protocol.LATEST_LINK,
        help="run id, its beginning, or latest (default); on a cluster also the job's name",
    )
    # A run that another machine started is found on its hosts.
    parser.add_argument(
        "--on",
        choices=("hosts", cluster.KUBERNETES),
        help="kubernetes: look for the run, or a job's name, on the cluster first",
    )
    add_hosts(parser)
    cluster.add_place(parser)


# -- what is read from the arguments ------------------------------------------------------------


def read_job(arguments: argparse.Namespace, otherwise: str = "") -> JobSpec:
    """The job file with its overrides, under the engine that the environment allows.

    ``otherwise`` is the text of a job file for where none is named.
    """
    from launcher.api.open import choose_engine
    from launcher.job.file import parse_job, read_job

    overrides = _read_overrides(arguments)
    if arguments.job is None:
        return choose_engine(parse_job(otherwise, "no job file", overrides), os.environ)
    return choose_engine(read_job(arguments.job, overrides), os.environ)


def _read_overrides(arguments: argparse.Namespace) -> list[Override]:
    from launcher.job.file import option_override, parse_override

    settings = [*arguments.set, *cluster.read_overrides(arguments)]
    settings += ["agent.in_image=false"] if getattr(arguments, "embed", False) else []
    overrides = [parse_override(setting) for setting in settings]
    for key in OVERRIDES:
        value = getattr(arguments, key)
        if value is not None:
            overrides.append(option_override(f"--{key.replace('_', '-')}", value))
    return overrides


def place_of(key: tuple[str | int, ...], arguments: argparse.Namespace) -> str:
    """``file:line`` of a key of the job, the option that gave it, or the file alone."""
    from launcher.job.file import find_place

    return find_place(key, str(arguments.job), _read_overrides(arguments))


def planned(arguments: argparse.Namespace) -> tuple[Choice, LaunchPlan]:
    """Where the job will run, and the plan of a new run there."""
    inventory = read_hosts(arguments)
    forced = arguments.on or ("hosts" if inventory else None)
    ssh = _connect(inventory) if inventory and forced == "hosts" else None

    from launcher.api.open import choose_target, open_target
    from launcher.plan.launch_plan import new_run_id, plan_run
    from launcher.targets.hosts.plan import plan_on_hosts

    job = read_job(arguments)
    if arguments.resume and arguments.on != cluster.KUBERNETES:
        job = _resumed(job, arguments)
    open_ = functools.partial(open_target, inventory=inventory, context=arguments.context, ssh=ssh)
    choice = choose_target(job, forced, run_root(arguments), open_)
    run_id = new_run_id(job.name, os.urandom(3))
    if choice.facts.target == cluster.KUBERNETES:
        return choice, _planned_kubernetes(job, run_id, arguments)
    plan_ = plan_on_hosts if choice.facts.hosts else plan_run
    return choice, plan_(job, choice.facts, run_id=run_id, extra_args=arguments.extra)


def _connect(inventory: Inventory) -> Ssh:
    """Begins before all else is imported, which takes as long as the hosts' answer."""
    from launcher.targets.hosts.ssh import Ssh

    ssh = Ssh(inventory)
    ssh.open_early(inventory.hosts)
    return ssh


def _planned_kubernetes(job: JobSpec, run_id: str, arguments: argparse.Namespace) -> LaunchPlan:
    from launcher.targets.kubernetes.plan import plan_kubernetes

    if arguments.resume:
        raise InputError(
            f"--resume {arguments.resume}: on Kubernetes jobs go on from their checkpoints",
            "leave it out; kubernetes.checkpoint says where they are",
        )
    root, cwd = str(run_root(arguments).absolute()), str(Path.cwd())
    return plan_kubernetes(job, run_id=run_id, run_root=root, cwd=cwd, extra_args=arguments.extra)


def read_hosts(arguments: argparse.Namespace) -> Inventory | None:
    """The machines that the command line names; None where it names none."""
    from launcher.targets.hosts.inventory import read_inventory

    if arguments.hosts is None:
        return None
    found = read_inventory(arguments.hosts, arguments.include, arguments.exclude)
    return dataclasses.replace(found, accept_new=arguments.accept_new_host_keys)


def _resumed(job: JobSpec, arguments: argparse.Namespace) -> JobSpec:
    from launcher.runs.folder import find_run

    earlier = find_run(run_root(arguments), arguments.resume).read_plan()
    return job.model_copy(update={"checkpoint_dir": earlier.checkpoint_dir})


def find(arguments: argparse.Namespace) -> RunFolder:
    """The run that was named, in a folder here or where it runs. Raises ``InputError``.

    Of a run of a cluster without a folder here, what it returns is gone when the command ends.
    """
    on_cluster = arguments.on == cluster.KUBERNETES or arguments.context or arguments.namespace
    if not on_cluster:
        inventory = read_hosts(arguments)
        if inventory is not None or arguments.on == "hosts":
            return _find_on_hosts(arguments, inventory)
    run = cluster.find_run(arguments, run_root(arguments))
    if (arguments.context or arguments.namespace) and not run.is_borrowed:
        cluster.move_run(run, arguments.context, arguments.namespace)
    return run


def _find_on_hosts(arguments: argparse.Namespace, inventory: Inventory | None) -> RunFolder:
    from launcher.runs.folder import find_run

    name = arguments.run
    try:
        run = find_run(run_root(arguments), arguments.run)
        if inventory is None or not run.is_foreign:
            return run
        name = run.run_id
    except InputError:
        if inventory is None:
            raise
    from launcher.targets.hosts.adopt import adopt_run

    return adopt_run(inventory, run_root(arguments), name)


def run_root(arguments: argparse.Namespace) -> Path:
    """The folder of the run folders, as it was given."""
    return Path(arguments.runs)


def shown(path: Path) -> str:
    """A path as people type it: from the current folder, if it lies below."""
    with contextlib.suppress(ValueError, OSError):  # OSError: the current folder is gone
        return str(path.relative_to(Path.cwd()))
    return str(path)
