"""The room of target ``kubernetes``: kubectl's options, and runs found on a cluster."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.contract import protocol, typed
from launcher.contract.errors import InputError, TargetError
from launcher.targets.room import GivenOptions, Note, Plugin, Room, words_given

if TYPE_CHECKING:
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder
    from launcher.targets.kubernetes.api import Cluster

KINDS = ("pytorchjob", "trainjob", "jobset", "job")
UNASKED_LIMIT_S = 3.0
OVERRIDES = ("kind", "namespace")
"""Options that stand for ``kubernetes.KEY`` of the job file."""
PLACE = ("context", "namespace")
NAMED = (*OVERRIDES, "context", "kubeconfig")


class KubernetesRoom(Room):
    """A job's objects in one namespace of a cluster."""

    name = "kubernetes"
    plugin = Plugin("kubectl launcher", ("-n", "--namespace", "--context", "--kubeconfig"))
    finds_runs = "alone"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.kubernetes.target import KubernetesTarget

        return KubernetesTarget(run_root, context=getattr(arguments, "context", None))

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        from launcher.targets.kubernetes.doctor import diagnose_kubernetes

        return diagnose_kubernetes(job, folder, getattr(arguments, "context", None))

    # -- the command line -------------------------------------------------------------------------

    def add_options(self, parser: ArgumentParser, of: Literal["run", "job", "doctor"]) -> None:
        context = "Kubernetes: context of the kubeconfig (default: its current one)"
        parser.add_argument("--context", metavar="NAME", help=context)
        namespace = "Kubernetes: namespace (default: that of the context)"
        parser.add_argument("-n", "--namespace", metavar="NAME", help=namespace)
        kubeconfig = "Kubernetes: instead of $KUBECONFIG or ~/.kube/config"
        parser.add_argument("--kubeconfig", metavar="FILE", help=kubeconfig)
        if of != "run":
            parser.add_argument(
                "--kind", choices=KINDS, help="Kubernetes: override kubernetes.kind"
            )

    def read_options(self, arguments: Namespace) -> GivenOptions:
        """As ``Room.read_options``.

        The kubeconfig that was named is the one that counts, for child processes too.
        """
        if arguments.is_plugin and "on" in arguments and arguments.on is None:
            # LAUNCHER_HOSTS of the environment must not name another target.
            arguments.on, arguments.hosts = self.name, None
        given = {
            key: value for key in NAMED if (value := getattr(arguments, key, None)) is not None
        }
        if "kubeconfig" in given or "context" in given:
            from launcher.targets.kubernetes.kubeconfig import using

            arguments.until_end.enter_context(using(given.get("kubeconfig"), given.get("context")))
        on = getattr(arguments, "on", None)
        finds_runs_by = words_given(arguments, ("kubeconfig",))
        if "set" not in arguments:
            place = given.keys() & {*PLACE}
            # A run's folder remembers its cluster; without one, it is looked for where this was.
            if on == self.name and not arguments.is_plugin:
                finds_runs_by += ["--on", self.name]
            finds_runs_by += words_given(arguments, PLACE)
            names_runs = on == self.name or bool(place)
            return GivenOptions(names_runs=names_runs, finds_runs_by=finds_runs_by)
        if given and on != self.name:
            key, value = next(iter(given.items()))
            raise InputError(f"--{key} {value} without --on {self.name}", f"--on {self.name}")
        settings = {key: given[key] for key in OVERRIDES if key in given}
        return GivenOptions(settings=settings, finds_runs_by=finds_runs_by)

    # -- runs that are found there ----------------------------------------------------------------

    def find_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError | None = None
    ) -> RunFolder | None:
        """As ``Room.find_run``: the cluster is asked before beginnings of ids are looked at."""
        if otherwise is not None:
            return self._look_for_run(arguments, run_root, otherwise)
        from launcher.runs.folder import RunFolder

        name, exact = arguments.run, run_root / arguments.run
        is_here = (exact / protocol.PLAN_FILE).is_file()
        if is_here and not (name == protocol.LATEST_LINK and arguments.on == self.name):
            run = RunFolder(exact.resolve())
        else:
            run = self._borrow(arguments, run_root, name) or _find_here(run_root, name)
        if (arguments.context or arguments.namespace) and not run.is_borrowed:
            move_run(run, arguments.context, arguments.namespace)
        return run

    def _look_for_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError
    ) -> RunFolder | None:
        from launcher.targets.kubernetes.api import Cluster

        name = arguments.run
        fits_several = "may be any of" in otherwise.what
        if fits_several or name == protocol.LATEST_LINK or not _has_kubeconfig():
            return None
        try:
            Cluster().read_version(UNASKED_LIMIT_S)
            return self._borrow(arguments, run_root, name)
        except TargetError as error:
            raise InputError(f"{otherwise.what}; and {error.what}", otherwise.hint) from error

    def _borrow(self, arguments: Namespace, run_root: Path, name: str) -> RunFolder | None:
        """A folder of the run that lasts as long as the command."""
        import tempfile

        from launcher.runs.folder import RunFolder
        from launcher.targets.kubernetes.find_runs import borrow_run, find_on_cluster

        there = _cluster_of(arguments)
        if (found := find_on_cluster(there, name)) is None:
            return None
        if (run_root / found.run_id / protocol.PLAN_FILE).is_file():
            return RunFolder(run_root / found.run_id)
        folder = tempfile.TemporaryDirectory(prefix="launcher-run-", ignore_cleanup_errors=True)
        return borrow_run(there, found, Path(arguments.until_end.enter_context(folder)))

    def list_runs(
        self, arguments: Namespace, run_root: Path, note: Note, *, everything: bool
    ) -> list[ListedRun]:
        from launcher.contract.clock import SystemClock
        from launcher.targets.kubernetes.find_runs import list_cluster_runs

        now, there = SystemClock().wall(), _cluster_of(arguments)
        rows, notes = list_cluster_runs(run_root, there, now, everything=everything)
        for line in notes:
            note(line)
        return rows


def _find_here(run_root: Path, name: str) -> RunFolder:
    from launcher.runs.folder import find_run

    try:
        return find_run(run_root, name)
    except InputError as error:
        # There is no folder to cd to, of a run of a cluster.
        raise InputError(error.what, f"{typed.command('ps', '--all')} lists the runs") from error


def _cluster_of(arguments: Namespace) -> Cluster:
    from launcher.targets.kubernetes.api import Cluster

    return Cluster(context=arguments.context, namespace=arguments.namespace)


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
    from launcher.contract.clock import SystemClock
    from launcher.targets.kubernetes.api import Cluster
    from launcher.targets.kubernetes.cluster_job import ClusterJob, read_cluster, write_cluster

    plan = run.read_plan()
    option = f"--context {context}" if context else f"--namespace {namespace}"
    if plan.target != KubernetesRoom.name:
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
