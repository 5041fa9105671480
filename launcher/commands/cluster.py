"""Options that name a cluster, as kubectl has them, and what commands do with them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from launcher.errors import InputError

if TYPE_CHECKING:
    from launcher.runs import RunFolder

KUBERNETES = "kubernetes"
KINDS = ("pytorchjob", "trainjob", "jobset", "job")
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


def add_kind(parser: argparse.ArgumentParser) -> None:
    """Which objects a job becomes."""
    parser.add_argument("--kind", choices=KINDS, help="Kubernetes: override kubernetes.kind")


def read_overrides(arguments: argparse.Namespace) -> list[str]:
    """What the options say, as settings of the job file.

    Raises ``InputError`` for options of a cluster where the job goes elsewhere.
    """
    given = {key: getattr(arguments, key, None) for key in (*OVERRIDES, "context")}
    named = [f"--{key} {value}" for key, value in given.items() if value is not None]
    if named and arguments.on != KUBERNETES:
        raise InputError(f"{named[0]} without --on {KUBERNETES}", f"--on {KUBERNETES}")
    return [f"kubernetes.{key}={given[key]}" for key in OVERRIDES if given[key] is not None]


def move_run(run: RunFolder, context: str | None, namespace: str | None) -> None:
    """Looks for a run in the place that was named, and remembers it from then on.

    For a context that was renamed, or another kubeconfig. Raises ``InputError`` where the run is
    on no cluster or not there, ``TargetError`` where the cluster does not answer.
    """
    from launcher.targets.kubernetes import KubernetesTarget, read_cluster, write_cluster
    from launcher.targets.kubernetes_api import Cluster

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
