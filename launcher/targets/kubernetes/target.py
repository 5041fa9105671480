"""Target ``kubernetes``: a job's objects in one namespace of a cluster.

The cluster's controllers start and replace the pods; the launcher submits, watches and reads.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.reasons import NodeState
from launcher.follow.target import LiveRun, Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.kubernetes.api import IN_CLUSTER, ApiError, Cluster, Object, Place
from launcher.targets.kubernetes.by_hand import (
    KubernetesArtifact,
    render_by_hand,
    render_suspending,
    render_suspension,
)
from launcher.targets.kubernetes.endings import PodEndings
from launcher.targets.kubernetes.news import read_news, read_raw, tell_silence
from launcher.targets.kubernetes.output import Incarnations, PodOutput, observe_node
from launcher.targets.kubernetes.plan import plan_facts
from launcher.targets.kubernetes.pod_states import (
    DELETED,
    JobEnd,
    PodView,
    parse_ended_at,
    parse_job_end,
    parse_pod,
)
from launcher.targets.kubernetes.render import render_manifest
from launcher.targets.kubernetes.render_pod import pods_of
from launcher.targets.kubernetes.trial import refuse_taken, try_pod
from launcher.targets.kubernetes.watch import PodWatch

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

CLUSTER_FILE = "cluster.json"
"""In the run folder: context and namespace, for calls after the current context has changed."""
CONFLICT = 409
STOP_MARGIN_S = 30.0
LOG_LIMIT_S = 15.0
"""How long the last lines of ended pods may take."""
ENDINGS_LIMIT_S = 2.0
"""How long the watch may take to tell how pods ended that a list no longer has."""
API_OF_KIND = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "job": ("batch/v1", "Job"),
}
RESIZED_KINDS = ("pytorchjob", "job")


class KubernetesTarget:
    """Runs a job as objects of the kind that it asks for."""

    name = "kubernetes"

    def __init__(
        self,
        run_root: Path,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
        *,
        context: str | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._run_root = run_root
        self._given = cluster
        self._context = context
        self._clock = clock or SystemClock()
        self._watch: PodWatch | None = None
        self._output: PodOutput | None = None
        self._incarnations: Incarnations | None = None
        self._endings: PodEndings | None = None

    # -- where -----------------------------------------------------------------------------------

    def _cluster(self, run_id: str, namespace: str | None = None) -> Cluster:
        if self._given is None:
            self._given = read_cluster(self._run_root / run_id) or Cluster(
                context=self._context, namespace=namespace
            )
        return self._given

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: asks only whether the cluster answers."""
        cluster = self._cluster("", job.kubernetes.namespace)
        cluster.read_version()
        if cluster.skips_verification:
            self.notes.append(
                f"context {cluster.context} skips TLS verification: whoever is on the way to "
                "the cluster can read and change what is sent (insecure-skip-tls-verify)"
            )
        root, cwd = str(self._run_root.absolute()), str(Path.cwd())
        return plan_facts(job, run_root=root, cwd=cwd)

    def check(self, plan: LaunchPlan) -> None:
        """As ``Target.check``: only a pod sees its image and its volumes."""

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> KubernetesArtifact:
        """The objects of all nodes, whatever ``only`` says: a cluster has no others."""
        namespace = pods_of(plan).namespace or "default"
        return KubernetesArtifact(manifest=render_manifest(plan), namespace=namespace)

    # -- submitting ------------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: the server admits everything before anything is made.

        Raises ``InputError`` where an object of the job's name is there already.
        """
        cluster = self._cluster(plan.run_id, pods_of(plan).namespace)
        *others, job = self.render(plan).manifest.objects
        if (held := cluster.read(Place.of(job))) is not None:
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
            held = cluster.read(Place.of(job)) or job
            raise refuse_taken(cluster, self._run_root, held) from error
        for item in others:
            # With the job goes what was made for it, also by kubectl delete.
            cluster.merge(Place.of(item), {"metadata": {"ownerReferences": [_owner(made)]}})
        make_folders((plan.run_dir,))
        write_cluster(Path(plan.run_dir), cluster)

    def _remove_all(self, cluster: Cluster, items: list[Object]) -> None:
        for item in items:
            with contextlib.suppress(TargetError):
                cluster.delete(Place.of(item))

    # -- observing -------------------------------------------------------------------------------

    def _place(self, plan: LaunchPlan) -> Place:
        api_version, kind = API_OF_KIND[pods_of(plan).kind]
        return Place(api_version=api_version, kind=kind, name=plan.job_name)

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

    def read_ended_at(self, plan: LaunchPlan) -> float | None:
        """When the job ended, in seconds since the epoch; None where its object does not say."""
        return parse_ended_at(self.read_job(plan) or {})

    def read_pods(self, plan: LaunchPlan) -> tuple[PodView, ...]:
        """The run's pods as they are now, oldest first."""
        if self._watch is not None:
            return self._watch.refresh()
        found = self._cluster(plan.run_id).list_objects("v1", "Pod", _selector(plan.run_id))
        views = (parse_pod(pod, int(pods_of(plan).has_master)) for pod in found["items"])
        # Servers list by name.
        return tuple(sorted(views, key=lambda pod: (pod.created, pod.name)))

    def read_news(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Why pods are missing: what the job's conditions and events say, each in a line."""
        return read_news(self._cluster(plan.run_id), plan, self.read_job(plan))

    def tell_silence(self, plan: LaunchPlan) -> str:
        """A line for where no pod was made for a while, and nothing says why."""
        return tell_silence(self._cluster(plan.run_id), plan, self.read_job(plan))

    def observe(self, plan: LaunchPlan) -> Observation:
        pods = self.read_pods(plan)
        nodes = [observe_node(node.node_index, pods, self._numbers(plan)) for node in plan.nodes]
        missing = [n for n, node in enumerate(nodes) if node.state is NodeState.MISSING]
        if missing:
            with contextlib.suppress(TargetError):
                said = "; ".join(self.read_news(plan))
                nodes[missing[0]] = replace(nodes[missing[0]], detail=said)
        return Observation(run_id=plan.run_id, nodes=tuple(nodes))

    # -- output ----------------------------------------------------------------------------------

    def follow(self, plan: LaunchPlan) -> PodWatch:
        """Opens the watch; its pods' logs go to the run folder as ``follow_logs`` is called."""
        if self._watch is None:
            masters = int(pods_of(plan).has_master)
            cluster = self._cluster(plan.run_id, pods_of(plan).namespace)
            self._watch = PodWatch(cluster, _selector(plan.run_id), masters)
            self._watch.start()
        return self._watch

    def follow_logs(self, plan: LaunchPlan) -> None:
        """Starts to follow every container that was started since the last call, and saves what
        those that ended have left."""
        watch = self.follow(plan)
        self._save(plan, watch)
        self._open_output(plan, watch).follow(watch.pods())

    def read_logs(self, plan: LaunchPlan) -> None:
        """Brings what all containers have written by now, within ``LOG_LIMIT_S``, and outcomes.

        Raises ``ApiError`` where this user may not read logs.
        """
        pods = self.follow(plan).refresh()
        self._save(plan, self.follow(plan))
        output = self._open_output(plan, self.follow(plan))
        output.read(pods, LOG_LIMIT_S, self._clock)
        if output.refusal is not None:
            raise output.refusal

    def find_refusal(self, plan: LaunchPlan) -> ApiError | None:
        """Why this user gets no logs; None while the server gives them."""
        return self._open_output(plan, self.follow(plan)).refusal

    def find_losses(self, plan: LaunchPlan) -> tuple[str, ...]:
        """A line for each container whose log the cluster no longer has."""
        return self._open_output(plan, self.follow(plan)).find_losses()

    def collect(self, plan: LaunchPlan) -> None:
        """As ``Target.collect``: the logs' last lines, within ``LOG_LIMIT_S``, and outcomes."""
        watch = self.follow(plan)
        watch.refresh()
        watch.wait_endings(ENDINGS_LIMIT_S)
        self.follow_logs(plan)
        self._open_output(plan, watch).finish(LOG_LIMIT_S, self._clock)

    def _save(self, plan: LaunchPlan, watch: PodWatch) -> None:
        """By the one process that writes the output: what ended pods leave."""
        if self._open_output(plan, watch).take():
            self._open_endings(plan).save(watch.seen(), watch.pods())

    def _open_endings(self, plan: LaunchPlan) -> PodEndings:
        if self._endings is None:
            run = RunFolder(Path(plan.run_dir))
            self._endings = PodEndings(run, self._numbers(plan), self._clock)
        return self._endings

    def writes_output(self, plan: LaunchPlan) -> bool:
        """Whether this process is the one that brings the pods' output, from now on."""
        return self._open_output(plan, self.follow(plan)).take()

    def _open_output(self, plan: LaunchPlan, watch: PodWatch) -> PodOutput:
        if self._output is None:
            run, cluster = RunFolder(Path(plan.run_dir)), self._cluster(plan.run_id)
            hear = self._open_endings(plan).hear
            self._output = PodOutput(cluster, run, self._numbers(plan), watch.find, hear)
        return self._output

    def _numbers(self, plan: LaunchPlan) -> Incarnations:
        if self._incarnations is None:
            self._incarnations = Incarnations(RunFolder(Path(plan.run_dir)))
        return self._incarnations

    def read_raw(self, plan: LaunchPlan) -> tuple[Object | None, list[Object], list[Object]]:
        """The job's object, its pods, and the events that this user may list, as they are sent."""
        pods, events = read_raw(self._cluster(plan.run_id), _selector(plan.run_id))
        return self.read_job(plan), pods, events

    def number_of(self, plan: LaunchPlan, pod: PodView) -> int:
        """Which incarnation of its node a pod's container is."""
        assert pod.node_index is not None, "asked for nodes alone"
        return self._numbers(plan).number(pod.node_index, pod.uid, pod.restarts)

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with the incarnations that its nodes have come to."""
        nodes = tuple(
            replace(node, incarnation=self._numbers(plan).newest(node.node_index))
            for node in plan.nodes
        )
        return replace(plan, nodes=nodes)

    # -- changing --------------------------------------------------------------------------------

    def scale(self, plan: LaunchPlan, nodes: int) -> None:
        """Changes the number of pods. Raises ``InputError`` for a kind that keeps its size."""
        kind = pods_of(plan).kind
        if kind not in RESIZED_KINDS:
            fix = "kubernetes.kind: pytorchjob or job, with nnodes: MIN:MAX"
            raise InputError(f"a {kind} keeps its size", fix)
        spec: Object = {"parallelism": nodes, "completions": nodes}
        if kind == "pytorchjob":
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes}}}
        self._cluster(plan.run_id).merge(self._place(plan), {"spec": spec})

    def suspend(self, plan: LaunchPlan) -> None:
        """Ends the pods and keeps the object, which may be resumed."""
        place = self._place(plan)
        self._cluster(plan.run_id).merge(place, render_suspension(place.kind))

    def resuming(self, plan: LaunchPlan) -> str:
        """The command that has a suspended job go on."""
        return render_suspending(self._cluster(plan.run_id), self._place(plan), False)

    def stop(self, run_id: str, grace_s: float) -> None:
        """As ``Target.stop``; claims, and so checkpoints, are never touched."""
        plan = RunFolder(self._run_root / run_id).read_plan()
        self._cluster(run_id, pods_of(plan).namespace)
        if self._output is None:
            self.collect(plan)
        self.remove(plan)
        self.wait_gone(plan, grace_s)

    def remove(self, plan: LaunchPlan) -> None:
        """Deletes the job, and with it what was made for it; its pods end later. Idempotent."""
        if self.read_job(plan) is not None:
            self._cluster(plan.run_id).delete(self._place(plan))

    def wait_gone(self, plan: LaunchPlan, grace_s: float) -> None:
        """Waits until the pods of a job that was deleted have ended, and brings their last lines.

        Raises ``TargetError`` where some are left ``STOP_MARGIN_S`` after their grace.
        """
        cluster, selector = self._cluster(plan.run_id), _selector(plan.run_id)
        deadline = self._clock.monotonic() + math.ceil(grace_s) + STOP_MARGIN_S
        while cluster.list_objects("v1", "Pod", selector)["items"]:
            if self._clock.monotonic() > deadline:
                raise TargetError(
                    f"pods of {plan.run_id} are still ending",
                    f"kubectl get pods -n {cluster.namespace} -l {selector}",
                )
            self._clock.sleep(0.5)
        if self._output is not None:
            self._output.finish(LOG_LIMIT_S, self._clock)
        if self._watch is not None:
            self._watch.wait_endings(ENDINGS_LIMIT_S)
            self._save(plan, self._watch)
            self._watch.stop()

    def render_by_hand(self, plan: LaunchPlan, *, keep: bool = False) -> str:
        """The kubectl command that ends the job, or, with ``keep``, suspends it."""
        return render_by_hand(self._cluster(plan.run_id), self._place(plan), keep=keep)

    def stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        """Raises ``InputError``: a cluster chooses which of its pods go."""
        raise InputError("single nodes of a cluster are not stopped", f"launcher scale {run_id} N")

    def live_runs(self) -> tuple[LiveRun, ...]:
        """None are reported: runs of a cluster go on without a launcher, as they are meant to."""
        return ()


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


def _selector(run_id: str) -> str:
    return f"{protocol.LABEL_RUN_ID}={run_id}"


def _owner(item: Object) -> dict[str, Any]:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
    }
