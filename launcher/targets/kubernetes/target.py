"""Target ``kubernetes``: a job's objects in one namespace of a cluster.

The cluster's controllers start and replace the pods; the launcher submits, watches and reads.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.reasons import NodeState
from launcher.follow.requests import write_size
from launcher.follow.target import Driver, LiveRun, Observation, RunEnd, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.kubernetes.api import IN_CLUSTER, ApiError, Cluster, Object, ObjectPlace
from launcher.targets.kubernetes.by_hand import (
    KubernetesArtifact,
    render_by_hand,
    render_suspending,
    render_suspension,
)
from launcher.targets.kubernetes.news import read_news, tell_silence
from launcher.targets.kubernetes.plan import plan_facts
from launcher.targets.kubernetes.pod_states import (
    DELETED,
    JobEnd,
    is_suspended,
    parse_job_end,
)
from launcher.targets.kubernetes.preflight import refuse_taken, try_pod
from launcher.targets.kubernetes.render import render_losses, render_manifest
from launcher.targets.kubernetes.render_pod import pods_of
from launcher.targets.kubernetes.run_pods import RunPods, selector_of

if TYPE_CHECKING:
    from launcher.follow.console import Console
    from launcher.job.spec import JobSpec

CLUSTER_FILE = "cluster.json"
"""In the run folder: context and namespace, for calls after the current context has changed."""
CONFLICT = 409
STOP_MARGIN_S = 30.0
API_OF_KIND = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "job": ("batch/v1", "Job"),
}
RESIZED_KINDS = ("pytorchjob", "job")


class KubernetesTarget(Target):
    """Runs a job as objects of the kind that it asks for."""

    name = "kubernetes"
    goes_on_alone = True
    keeps_stopped_runs = True
    own_checkpoints = "kubernetes.checkpoint"
    tells_by_consoles = True

    def __init__(
        self,
        run_root: Path,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
        *,
        context: str | None = None,
    ) -> None:
        super().__init__()
        self._run_root = run_root
        self._given = cluster
        self._context = context
        self._clock = clock or SystemClock()
        self._pods: RunPods | None = None

    # -- where -----------------------------------------------------------------------------------

    def _cluster(self, run_id: str, namespace: str | None = None) -> Cluster:
        if self._given is None:
            self._given = read_cluster(self._run_root / run_id) or Cluster(
                context=self._context, namespace=namespace
            )
        return self._given

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: asks only whether the cluster answers."""
        facts = self.facts_offline(job)
        cluster = self._cluster("", job.kubernetes.namespace)
        cluster.read_version()
        if cluster.skips_verification:
            self.notes.append(
                f"context {cluster.context} skips TLS verification: whoever is on the way to "
                "the cluster can read and change what is sent (insecure-skip-tls-verify)"
            )
        return facts

    def facts_offline(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts_offline``: all that a manifest needs is in the job file."""
        root, cwd = str(self._run_root.absolute()), str(Path.cwd())
        return plan_facts(job, run_root=root, cwd=cwd)

    def describe(self, facts: TargetFacts) -> str:
        return f"Kubernetes, image {facts.image}, {facts.accelerator}"

    def check(self, plan: LaunchPlan) -> None:
        """As ``Target.check``: only a pod sees its image and its volumes."""
        self.notes += render_losses(pods_of(plan))

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> KubernetesArtifact:
        """The objects of all nodes, whatever ``only`` says: a cluster has no others."""
        namespace = pods_of(plan).namespace or "default"
        return KubernetesArtifact(manifest=render_manifest(plan), namespace=namespace)

    def preview(self, plan: LaunchPlan, made_by: str, *, embed: bool = False) -> str:
        self.check(plan)
        return render_manifest(plan, made_by=made_by).yaml()

    # -- submitting ------------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: the server admits everything before anything is made.

        Raises ``InputError`` where an object of the job's name is there already.
        """
        cluster = self._cluster(plan.run_id, pods_of(plan).namespace)
        *others, job = self.render(plan).manifest.objects
        if (held := cluster.read(ObjectPlace.of(job))) is not None:
            raise refuse_taken(cluster, self._run_root, held)
        try:
            cluster.create(job, dry_run=True)
            for item in others:
                cluster.apply(item, dry_run=True)
            self.notes += try_pod(cluster, plan)
        finally:
            self.notes += cluster.warnings
        for item in others:
            cluster.apply(item)
        try:
            made = cluster.create(job)
        except ApiError as error:
            if error.status != CONFLICT:
                self._remove_all(cluster, others)
                raise
            held = cluster.read(ObjectPlace.of(job)) or job
            raise refuse_taken(cluster, self._run_root, held) from error
        for item in others:
            # With the job goes what was made for it, also by kubectl delete.
            cluster.merge(ObjectPlace.of(item), {"metadata": {"ownerReferences": [_owner(made)]}})
        make_folders((plan.run_dir,))
        write_cluster(Path(plan.run_dir), cluster)

    def _remove_all(self, cluster: Cluster, items: list[Object]) -> None:
        for item in items:
            with contextlib.suppress(TargetError):
                cluster.delete(ObjectPlace.of(item))

    # -- observing -------------------------------------------------------------------------------

    def _place(self, plan: LaunchPlan) -> ObjectPlace:
        api_version, kind = API_OF_KIND[pods_of(plan).kind]
        return ObjectPlace(api_version=api_version, kind=kind, name=plan.job_name)

    def read_job(self, plan: LaunchPlan) -> Object | None:
        """The job's own object; None where it is gone, or another run's by now."""
        item = self._cluster(plan.run_id).read(self._place(plan))
        labels = (item or {}).get("metadata", {}).get("labels") or {}
        return item if labels.get(protocol.LABEL_RUN_ID) == plan.run_id else None

    def read_end(self, plan: LaunchPlan) -> JobEnd | None:
        """How the job ended; None while it goes on."""
        item = self.read_job(plan)
        if item is None:
            kind = API_OF_KIND[pods_of(plan).kind][1]
            message = f"somebody deleted {kind} {plan.job_name}"
            return JobEnd(succeeded=False, word=DELETED, message=message)
        return parse_job_end(item)

    def read_news(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Why pods are missing: what the job's conditions and events say, each in a line."""
        return read_news(self._cluster(plan.run_id), plan, self.read_job(plan))

    def tell_silence(self, plan: LaunchPlan) -> str:
        """A line for where no pod was made for a while, and nothing says why."""
        return tell_silence(self._cluster(plan.run_id), plan, self.read_job(plan))

    def observe(self, plan: LaunchPlan) -> Observation:
        nodes = self.pods(plan).observe()
        missing = [n for n, node in enumerate(nodes) if node.state is NodeState.MISSING]
        if missing:
            with contextlib.suppress(TargetError):
                said = "; ".join(self.read_news(plan))
                nodes[missing[0]] = replace(nodes[missing[0]], detail=said)
        return Observation(run_id=plan.run_id, nodes=tuple(nodes))

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        return self.pods(plan).as_run(plan)

    def collect(self, plan: LaunchPlan) -> None:
        self.pods(plan).collect()

    def pods(self, plan: LaunchPlan) -> RunPods:
        """The run's pods, and what they write."""
        if self._pods is None:
            cluster = self._cluster(plan.run_id, pods_of(plan).namespace)
            self._pods = RunPods(cluster, plan, self._clock)
        return self._pods

    # -- changing --------------------------------------------------------------------------------

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        self.resize(plan, nodes)
        write_size(run, nodes)
        return True

    def resize(self, plan: LaunchPlan, nodes: int) -> None:
        """Changes the number of pods. Raises ``InputError`` for a kind that keeps its size."""
        kind = pods_of(plan).kind
        if kind not in RESIZED_KINDS:
            fix = "kubernetes.kind: pytorchjob or job, with nnodes: MIN:MAX"
            raise InputError(f"a {kind} keeps its size", fix)
        spec: Object = {"parallelism": nodes, "completions": nodes}
        if kind == "pytorchjob":
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes}}}
        self._cluster(plan.run_id).merge(self._place(plan), {"spec": spec})

    def suspend_job(self, plan: LaunchPlan) -> None:
        """Ends the pods and keeps the object, which may be resumed."""
        place = self._place(plan)
        self._cluster(plan.run_id).merge(place, render_suspension(place.kind))

    def resuming(self, plan: LaunchPlan) -> str:
        return render_suspending(self._cluster(plan.run_id), self._place(plan), False)

    def has_resumed(self, plan: LaunchPlan) -> bool:
        with contextlib.suppress(TargetError):
            item = self.read_job(plan)
            return item is not None and not is_suspended(item)
        return False

    def suspend(self, run_id: str) -> None:
        """As ``Target.suspend``: the job's object stays."""
        self._end(run_id, keep=True)

    def stop(self, run_id: str, grace_s: float) -> None:
        """As ``Target.stop``; claims, and so checkpoints, are never touched.

        Raises ``TargetError`` with the command to type where the job runs on.
        """
        self.wait_gone(self._end(run_id, keep=False), grace_s)

    def _end(self, run_id: str, *, keep: bool) -> LaunchPlan:
        plan = RunFolder(self._run_root / run_id).read_plan()
        self._cluster(run_id, pods_of(plan).namespace)
        try:
            self.collect(plan)
        except TargetError as error:
            # Who may not see the pods may end the job all the same.
            self.notes.append(f"the last of its logs is left there: {error.what}")
        try:
            (self.suspend_job if keep else self.remove)(plan)
        except TargetError as error:
            end = None
            with contextlib.suppress(TargetError):
                end = self.read_end(plan)
            what = error.what if end else f"STILL RUNNING: {run_id}: {error.what}"
            raise TargetError(what, self.render_by_hand(plan, keep=keep)) from error
        return plan

    def remove(self, plan: LaunchPlan) -> None:
        """Deletes the job, and with it what was made for it; its pods end later. Idempotent."""
        if self.read_job(plan) is not None:
            self._cluster(plan.run_id).delete(self._place(plan))

    def wait_gone(self, plan: LaunchPlan, grace_s: float) -> None:
        """Waits until the pods of a job that was deleted have ended, and brings their last lines.

        Raises ``TargetError`` where some are left ``STOP_MARGIN_S`` after their grace.
        """
        cluster, selector = self._cluster(plan.run_id), selector_of(plan.run_id)
        deadline = self._clock.monotonic() + math.ceil(grace_s) + STOP_MARGIN_S
        while cluster.list_objects("v1", "Pod", selector)["items"]:
            if self._clock.monotonic() > deadline:
                raise TargetError(
                    f"pods of {plan.run_id} are still ending",
                    f"kubectl get pods -n {cluster.namespace} -l {selector}",
                )
            self._clock.sleep(0.5)
        if self._pods is not None:
            self._pods.close()

    def render_by_hand(self, plan: LaunchPlan, *, keep: bool = False) -> str:
        """The kubectl command that ends the job, or, with ``keep``, suspends it."""
        return render_by_hand(self._cluster(plan.run_id), self._place(plan), keep=keep)

    def stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        """Raises ``InputError``: a cluster chooses which of its pods go."""
        raise InputError("single nodes of a cluster are not stopped", f"launcher scale {run_id} N")

    def live_runs(self) -> tuple[LiveRun, ...]:
        """None are reported: runs of a cluster go on without a launcher, as they are meant to."""
        return ()

    # -- following: in modules of their own -------------------------------------------------------

    def drive(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> Driver:
        from launcher.targets.kubernetes.follow import ClusterDriver

        return ClusterDriver(run, plan, self, console, clock)

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> RunEnd | None:
        from launcher.targets.kubernetes.unfollowed import find_end

        return find_end(run, plan, self)

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        from launcher.targets.kubernetes.unfollowed import bring_output

        return bring_output(run, plan, self, self._clock, follow=follow)

    def bring_story(self, run: RunFolder, plan: LaunchPlan, claim: Path | None) -> None:
        from launcher.targets.kubernetes.story import bring_story

        bring_story(run, plan, self, claim)


def read_cluster(run_dir: Path) -> Cluster | None:
    """Where a run was submitted to; None where nothing says so."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        told = json.loads((run_dir / CLUSTER_FILE).read_text())
        context = None if told["context"] == IN_CLUSTER else told["context"]
        return Cluster(context=context, namespace=told["namespace"])
    return None


def write_cluster(run_dir: Path, cluster: Cluster) -> None:
    """Remembers it for later calls."""
    told = {"context": cluster.context, "namespace": cluster.namespace}
    write_atomically(run_dir / CLUSTER_FILE, json.dumps(told))


def _owner(item: Object) -> dict[str, Any]:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
    }
