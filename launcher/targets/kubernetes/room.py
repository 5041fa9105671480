"""The room of target ``kubernetes``: kubectl's options, and runs found on a cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.targets.room import GivenOptions, Left, Note, Plugin, Room, words_given

if TYPE_CHECKING:
    from launcher.doctor.finding import Finding
    from launcher.follow.target import ListedRun, Target
    from launcher.job.spec import JobSpec
    from launcher.runs.folder import RunFolder

KINDS = ("pytorchjob", "trainjob", "jobset", "job")
OVERRIDES = ("kind", "namespace")
"""Options that stand for ``kubernetes.KEY`` of the job file."""
PLACE = ("kubeconfig", "context", "namespace")


class KubernetesRoom(Room):
    """A job's objects in one namespace of a cluster."""

    name = "kubernetes"
    plugin = Plugin("kubectl launcher", ("-n", "--namespace", "--context", "--kubeconfig"))
    finds_runs = "alone"

    def open(self, run_root: Path, arguments: Namespace | None = None) -> Target:
        from launcher.targets.kubernetes.target import KubernetesTarget

        context, kubeconfig = (getattr(arguments, key, None) for key in ("context", "kubeconfig"))
        return KubernetesTarget(run_root, context=context, kubeconfig=kubeconfig)

    def diagnose(
        self, job: JobSpec, folder: Path, limit_s: float, arguments: Namespace | None = None
    ) -> Iterator[Finding]:
        from launcher.targets.kubernetes.doctor import diagnose_kubernetes

        context, kubeconfig = (getattr(arguments, key, None) for key in ("context", "kubeconfig"))
        return diagnose_kubernetes(job, folder, context, kubeconfig)

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
        """As ``Room.read_options``."""
        if arguments.is_plugin and "on" in arguments and arguments.on is None:
            # LAUNCHER_HOSTS of the environment must not name another target.
            arguments.on, arguments.hosts = self.name, None
        options = {key: getattr(arguments, key, None) for key in (*OVERRIDES, *PLACE)}
        given = {key: value for key, value in options.items() if value is not None}
        if given and getattr(arguments, "hold", None) and arguments.on is None:
            arguments.on = self.name
        on = getattr(arguments, "on", None)
        if "set" not in arguments:
            # A run's folder remembers its cluster; finding a run without one needs these again.
            named = [] if on != self.name or arguments.is_plugin else ["--on", self.name]
            names_runs = on == self.name or bool(given.keys() & {*PLACE})
            finds_runs_by = [*named, *words_given(arguments, PLACE)]
            return GivenOptions(names_runs=names_runs, finds_runs_by=finds_runs_by)
        if given and on != self.name:
            key, value = next(iter(given.items()))
            raise InputError(f"--{key} {value} without --on {self.name}", f"--on {self.name}")
        settings = {key: given[key] for key in OVERRIDES if key in given}
        return GivenOptions(settings=settings)

    # -- runs that are found there ----------------------------------------------------------------

    def find_run(
        self, arguments: Namespace, run_root: Path, otherwise: InputError | None = None
    ) -> RunFolder | None:
        """As ``Room.find_run``: the cluster is asked before beginnings of ids are looked at."""
        from launcher.targets.kubernetes import find_runs

        if otherwise is None:
            return find_runs.find_run(arguments, run_root)
        if "may be any of" in otherwise.what or arguments.run == protocol.LATEST_LINK:
            return None
        return find_runs.find_run_briefly(arguments, run_root, otherwise)

    def list_runs(
        self, arguments: Namespace, run_root: Path, note: Note, *, everything: bool
    ) -> list[ListedRun]:
        from launcher.targets.kubernetes import find_runs

        return find_runs.list_runs(arguments, run_root, note, everything=everything)

    def find_left(self, arguments: Namespace, note: Note) -> list[Left]:
        from launcher.targets.kubernetes import find_runs

        return find_runs.find_left(arguments)
