"""Runs that the options of a command lead to on a cluster; a folder here need not exist."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

from launcher.contract import protocol, typed
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.follow.target import ListedRun
from launcher.runs.folder import RunFolder
from launcher.runs.folder import find_run as find_in_folder
from launcher.targets.kubernetes.api import Cluster
from launcher.targets.kubernetes.cluster_job import ClusterJob, read_cluster, write_cluster
from launcher.targets.kubernetes.find_runs import (
    RUNNING,
    SUSPENDED,
    borrow_run,
    find_on_cluster,
    list_run,
    read_jobs,
)
from launcher.targets.room import Note

ON = "kubernetes"
UNASKED_LIMIT_S = 3.0


def find_run(arguments: Namespace, run_root: Path) -> RunFolder:
    """The run, in its folder here or borrowed from the cluster. Raises ``InputError``."""
    name, exact = arguments.run, run_root / arguments.run
    is_here = (exact / protocol.PLAN_FILE).is_file()
    if is_here and not (name == protocol.LATEST_LINK and arguments.on == ON):
        run = RunFolder(exact.resolve())
    else:
        run = _borrow(arguments, run_root, name) or _find_here(run_root, name)
    if (arguments.context or arguments.namespace) and not run.is_borrowed:
        move_run(run, arguments.context, arguments.namespace)
    return run


def look_for_run(arguments: Namespace, run_root: Path, otherwise: InputError) -> RunFolder | None:
    """The run there, where nobody said that it is; asks for a short time first."""
    try:
        Cluster().read_version(UNASKED_LIMIT_S)
        return _borrow(arguments, run_root, arguments.run)
    except TargetError as error:
        raise InputError(f"{otherwise.what}; and {error.what}", otherwise.hint) from error


def _borrow(arguments: Namespace, run_root: Path, name: str) -> RunFolder | None:
    """A folder of the run that lasts as long as the command."""
    there = _cluster_of(arguments)
    if (found := find_on_cluster(there, name)) is None:
        return None
    if (run_root / found.run_id / protocol.PLAN_FILE).is_file():
        return RunFolder(run_root / found.run_id)
    folder = tempfile.TemporaryDirectory(prefix="launcher-run-", ignore_cleanup_errors=True)
    return borrow_run(there, found, Path(arguments.until_end.enter_context(folder)))


def _find_here(run_root: Path, name: str) -> RunFolder:
    try:
        return find_in_folder(run_root, name)
    except InputError as error:
        # There is no folder to cd to, of a run of a cluster.
        raise InputError(error.what, f"{typed.command('ps', '--all')} lists the runs") from error


def list_runs(
    arguments: Namespace, run_root: Path, note: Note, *, everything: bool
) -> list[ListedRun]:
    """Runs that go on (or ``everything`` that is left of others too), oldest first.

    ``note`` takes lines about what is left out. Raises as ``read_jobs``.
    """
    jobs, notes = read_jobs(_cluster_of(arguments))
    for line in notes:
        note(line)
    now = SystemClock().wall()
    rows = [list_run(run_root, job, now) for job in jobs]
    shown = [row for row in rows if everything or row.state in (RUNNING, SUSPENDED)]
    return sorted(shown, key=lambda row: -row.age_s)


def _cluster_of(arguments: Namespace) -> Cluster:
    return Cluster(context=arguments.context, namespace=arguments.namespace)


def move_run(run: RunFolder, context: str | None, namespace: str | None) -> None:
    """Looks for a run in the place that was named, and remembers it from then on.

    For a context that was renamed, or another kubeconfig. Raises ``InputError`` where the run is
    on no cluster or not there, ``TargetError`` where the cluster does not answer.
    """
    plan = run.read_plan()
    option = f"--context {context}" if context else f"--namespace {namespace}"
    if plan.target != ON:
        raise InputError(f"{option}: {run.run_id} is on no cluster", f"leave {option} out")
    known = read_cluster(run.path)
    old = (known.context, known.namespace) if known else (None, None)
    new = (context or old[0], namespace or old[1])
    if known is not None and new == old:
        return
    there = Cluster(context=new[0], namespace=new[1])
    if ClusterJob(there, plan, SystemClock()).read() is None:
        raise InputError(
            f"{run.run_id} is not in namespace {there.namespace} of context {there.context}",
            f"leave {option} out: the run knows where it was submitted to",
        )
    write_cluster(run.path, there)
