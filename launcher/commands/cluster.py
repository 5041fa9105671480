"""Options that name a cluster, as kubectl has them, and what commands do with them."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import InputError, TargetError

if TYPE_CHECKING:
    from launcher.runs.folder import RunFolder

KUBERNETES = "kubernetes"
KINDS = ("pytorchjob", "trainjob", "jobset", "job")
PLACE_OPTIONS = ("-n", "--namespace", "--context", "--kubeconfig")
UNASKED_LIMIT_S = 3.0
OVERRIDES = ("kind", "namespace")
"""Options that stand for ``kubernetes.KEY`` of the job file."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """Which cluster, and where in it."""
    parser.add_argument(
        "--context", metavar="NAME", help="Kubernetes: context of the kubeconfig (its current one)"
    )
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="Kubernetes: namespace (the context's own)"
    )
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="Kubernetes: instead of $KUBECONFIG or ~/.kube/config"
    )


def assume(arguments: argparse.Namespace) -> None:
    """For kubectl's plugin: what takes a target is on a cluster, unless another one is named."""
    if "on" in arguments and arguments.on is None:
        arguments.on, arguments.hosts = KUBERNETES, None


@contextlib.contextmanager
def kubeconfig_of(arguments: argparse.Namespace) -> Iterator[None]:
    """Within it the kubeconfig that was named is the one that counts, for child processes too."""
    file = getattr(arguments, "kubeconfig", None)
    if file is None:
        yield
        return
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = file
    try:
        yield
    finally:
        os.environ.pop("KUBECONFIG")
        if before is not None:
            os.environ["KUBECONFIG"] = before


def add_kind(parser: argparse.ArgumentParser) -> None:
    """Which objects a job becomes."""
    parser.add_argument("--kind", choices=KINDS, help="Kubernetes: override kubernetes.kind")


def read_overrides(arguments: argparse.Namespace) -> list[str]:
    """What the options say, as settings of the job file.

    Raises ``InputError`` for options of a cluster where the job goes elsewhere.
    """
    given = {key: getattr(arguments, key, None) for key in (*OVERRIDES, "context", "kubeconfig")}
    named = [f"--{key} {value}" for key, value in given.items() if value is not None]
    if named and arguments.on != KUBERNETES:
        raise InputError(f"{named[0]} without --on {KUBERNETES}", f"--on {KUBERNETES}")
    return [f"kubernetes.{key}={given[key]}" for key in OVERRIDES if given[key] is not None]


def find_run(arguments: argparse.Namespace, run_root: Path) -> RunFolder:
    """The run that was named: in a folder here, or on the cluster, by run id or job's name.

    Where a place of a cluster is named, the cluster is asked before beginnings of ids are looked
    at; else only for what no folder here has. Raises ``InputError``.
    """
    from launcher.runs.folder import RunFolder
    from launcher.runs.folder import find_run as find_here

    name, on_cluster = arguments.run, arguments.on == KUBERNETES
    exact = run_root / name
    is_latest = name == protocol.LATEST_LINK
    if (exact / protocol.PLAN_FILE).is_file() and not (is_latest and on_cluster):
        return RunFolder(exact.resolve())
    if on_cluster or arguments.context or arguments.namespace:
        if (run := _borrow(arguments, run_root, name)) is not None:
            return run
        return find_here(run_root, name)
    try:
        return find_here(run_root, name)
    except InputError as error:
        if is_latest or not _has_kubeconfig() or "may be any of" in error.what:
            raise
        if (run := _try_to_borrow(arguments, run_root, name, error)) is not None:
            return run
        raise


def _try_to_borrow(
    arguments: argparse.Namespace, run_root: Path, name: str, otherwise: InputError
) -> RunFolder | None:
    """For a name that nobody said to be on a cluster: it may be a mistyped one, so not for long."""
    from launcher.targets.kubernetes.api import Cluster

    try:
        Cluster().read_version(UNASKED_LIMIT_S)
        return _borrow(arguments, run_root, name)
    except TargetError as error:
        raise InputError(f"{otherwise.what}; and {error.what}", otherwise.hint) from error


def _borrow(arguments: argparse.Namespace, run_root: Path, name: str) -> RunFolder | None:
    from launcher.runs.folder import RunFolder
    from launcher.targets.kubernetes.adopt import adopt_run, find_on_cluster
    from launcher.targets.kubernetes.api import Cluster

    there = Cluster(context=arguments.context, namespace=arguments.namespace)
    if (found := find_on_cluster(there, name)) is None:
        return None
    if (run_root / found.run_id / protocol.PLAN_FILE).is_file():
        return RunFolder(run_root / found.run_id)
    folder = tempfile.TemporaryDirectory(prefix="launcher-run-", ignore_cleanup_errors=True)
    return adopt_run(there, found, Path(arguments.until_end.enter_context(folder)))


def _has_kubeconfig() -> bool:
    """Whether a cluster is there to ask, as kubectl finds one."""
    files = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    inside = "KUBERNETES_SERVICE_HOST" in os.environ
    return inside or any(Path(file).expanduser().is_file() for file in files if file)


def move_run(run: RunFolder, context: str | None, namespace: str | None) -> None:
    """Looks for a run in the place that was named, and remembers it from then on.

    For a context that was renamed, or another kubeconfig. Raises ``InputError`` where the run is
    on no cluster or not there, ``TargetError`` where the cluster does not answer.
    """
    from launcher.targets.kubernetes.api import Cluster
    from launcher.targets.kubernetes.target import KubernetesTarget, read_cluster, write_cluster

    plan = run.read_plan()
    option = f"--context {context}" if context else f"--namespace {namespace}"
    if plan.target != KUBERNETES:
        raise InputError(f"{option}: {run.run_id} is on no cluster", f"leave {option} out")
    known = read_cluster(run.path)
    if known is not None and (context or known.context, namespace or known.namespace) == (
        known.context,
        known.namespace,
    ):
        return
    there = Cluster(
        context=context or (known.context if known else None),
        namespace=namespace or (known.namespace if known else None),
    )
    if KubernetesTarget(run.path.parent, there).read_job(plan) is None:
        raise InputError(
            f"{run.run_id} is not in namespace {there.namespace} of context {there.context}",
            f"leave {option} out: the run knows where it was submitted to",
        )
    write_cluster(run.path, there)
