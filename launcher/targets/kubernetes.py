"""Target ``kubernetes``: a job's objects in one namespace of a cluster.

The cluster's controllers start and replace the pods; the launcher submits, watches and reads.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import contract
from launcher.clock import Clock, SystemClock
from launcher.errors import DiskFullError, InputError, TargetError
from launcher.facts import TargetFacts
from launcher.kubernetes_plan import plan_facts
from launcher.manifests import Manifest, render_manifest
from launcher.plan import LaunchPlan
from launcher.pod_states import (
    JobEnd,
    PodView,
    describe_trouble,
    parse_job_end,
    parse_outcome,
    parse_pod,
)
from launcher.pods import PodSettings, plan_pods
from launcher.render.pod import pods_of
from launcher.runs import RunFolder, make_folders, write_atomically
from launcher.state import NodeState
from launcher.targets.base import LiveRun, NodeObservation, Observation
from launcher.targets.kubernetes_api import IN_CLUSTER, ApiError, Cluster, Object, Place
from launcher.targets.kubernetes_output import Incarnations, PodOutput
from launcher.targets.kubernetes_watch import PodWatch

if TYPE_CHECKING:
    from launcher.job import JobSpec

CLUSTER_FILE = "cluster.json"
"""In the run folder: context and namespace, for calls after the current context has changed."""
CONFLICT = 409
STOP_MARGIN_S = 30.0
LOG_LIMIT_S = 15.0
"""How long the last lines of ended pods may take."""
API_OF_KIND = {
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "job": ("batch/v1", "Job"),
}
RESIZED_KINDS = ("pytorchjob", "job")


@dataclass(frozen=True, kw_only=True)
class KubernetesArtifact:
    """A plan as a manifest."""

    manifest: Manifest
    namespace: str

    def shell(self) -> str:
        """A script that applies the manifest."""
        text = self.manifest.yaml()
        return f"#!/bin/sh\nkubectl apply -n {self.namespace} -f - <<'EOF'\n{text}EOF\n"

    def shell_to_join(self) -> str:
        """Raises ``InputError``: a cluster's controllers start its nodes."""
        raise InputError("nodes of a cluster are not started by hand", "launcher scale RUN N")


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

    # -- where -----------------------------------------------------------------------------------

    def _cluster(self, run_id: str, namespace: str | None = None) -> Cluster:
        if self._given is None:
            self._given = read_cluster(self._run_root / run_id) or Cluster(
                context=self._context, namespace=namespace
            )
        return self._given

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: asks only whether the cluster answers."""
        pods = plan_pods(job)
        self._cluster("", job.kubernetes.namespace).read_version()
        root, cwd = str(self._run_root.absolute()), str(Path.cwd())
        return plan_facts(job, pods, run_id="", run_root=root, cwd=cwd)

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
            raise self._taken(plan, held)
        cluster.create(job, dry_run=True)
        for item in others:
            cluster.apply(item, dry_run=True)
        for item in others:
            cluster.apply(item)
        try:
            made = cluster.create(job)
        except ApiError as error:
            if error.status != CONFLICT:
                self._remove_all(cluster, others)
                raise
            raise self._taken(plan, cluster.read(Place.of(job)) or job) from error
        for item in others:
            # With the job goes what was made for it, also by kubectl delete.
            cluster.merge(Place.of(item), {"metadata": {"ownerReferences": [_owner(made)]}})
        make_folders((plan.run_dir,))
        write_cluster(Path(plan.run_dir), cluster)

    def _remove_all(self, cluster: Cluster, items: list[Object]) -> None:
        for item in items:
            with contextlib.suppress(TargetError):
                cluster.delete(Place.of(item))

    def _taken(self, plan: LaunchPlan, held: Object) -> InputError:
        kind, name = held["kind"], held["metadata"]["name"]
        run_id = (held["metadata"].get("labels") or {}).get(contract.LABEL_RUN_ID, "")
        namespace = self._cluster(plan.run_id).namespace
        if (self._run_root / run_id / contract.PLAN_FILE).is_file() and run_id:
            fix = f"launcher logs -f {run_id} to attach, or launcher stop {run_id} to replace it"
        else:
            fix = f"kubectl delete {kind.lower()} {name} -n {namespace} to replace it"
        return InputError(
            f"{kind} {name} is in namespace {namespace} already", f"{fix}; or --set name=OTHER"
        )

    # -- observing -------------------------------------------------------------------------------

    def _place(self, plan: LaunchPlan) -> Place:
        api_version, kind = API_OF_KIND[pods_of(plan).kind]
        return Place(api_version=api_version, kind=kind, name=plan.job_name)

    def read_job(self, plan: LaunchPlan) -> Object | None:
        """The job's own object; None where it is gone, or another run's by now."""
        item = self._cluster(plan.run_id).read(self._place(plan))
        labels = (item or {}).get("metadata", {}).get("labels") or {}
        return item if labels.get(contract.LABEL_RUN_ID) == plan.run_id else None

    def read_end(self, plan: LaunchPlan) -> JobEnd | None:
        """How the job ended; None while it goes on."""
        item = self.read_job(plan)
        if item is None:
            return JobEnd(succeeded=False, word="Deleted", message="somebody deleted the job")
        return parse_job_end(item)

    def read_pods(self, plan: LaunchPlan) -> tuple[PodView, ...]:
        """The run's pods as they are now."""
        if self._watch is not None:
            return self._watch.refresh()
        found = self._cluster(plan.run_id).list_objects("v1", "Pod", _selector(plan.run_id))
        return tuple(parse_pod(pod, _masters(pods_of(plan))) for pod in found["items"])

    def observe(self, plan: LaunchPlan) -> Observation:
        pods = self.read_pods(plan)
        nodes = [self._observe(plan, node.node_index, pods) for node in plan.nodes]
        return Observation(run_id=plan.run_id, nodes=tuple(nodes))

    def _observe(self, plan: LaunchPlan, index: int, pods: tuple[PodView, ...]) -> NodeObservation:
        own = [pod for pod in pods if pod.node_index == index]
        if not own:
            missing = NodeState.MISSING
            return NodeObservation(node_index=index, incarnation=0, state=missing)
        newest = own[-1]
        return NodeObservation(
            node_index=index,
            incarnation=self._numbers(plan).number(index, newest.uid, newest.restarts),
            state=newest.state,
            exit_code=newest.exit_code,
            out_of_memory=newest.trouble is not None and newest.trouble.value == "OOMKilled",
            detail=describe_trouble(newest) if newest.trouble else "",
        )

    # -- output ----------------------------------------------------------------------------------

    def follow(self, plan: LaunchPlan) -> PodWatch:
        """Opens the watch; its pods' logs go to the run folder as ``follow_logs`` is called."""
        if self._watch is None:
            masters = _masters(pods_of(plan))
            cluster = self._cluster(plan.run_id)
            self._watch = PodWatch(cluster, _selector(plan.run_id), masters)
            self._watch.start()
        return self._watch

    def follow_logs(self, plan: LaunchPlan) -> None:
        """Starts to follow every container that was started since the last call."""
        watch = self.follow(plan)
        self._open_output(plan, watch).follow(watch.pods())

    def read_logs(self, plan: LaunchPlan) -> None:
        """Brings what all containers have written by now, within ``LOG_LIMIT_S``."""
        pods = self.follow(plan).refresh()
        self._open_output(plan, self.follow(plan)).read(pods, LOG_LIMIT_S, self._clock)

    def collect(self, plan: LaunchPlan) -> None:
        """As ``Target.collect``: the logs' last lines, within ``LOG_LIMIT_S``, and outcomes."""
        pods = self.follow(plan).refresh()
        self.follow_logs(plan)
        for pod in pods:
            self._save_outcome(plan, pod)
        self._open_output(plan, self.follow(plan)).finish(LOG_LIMIT_S, self._clock)

    def writes_output(self, plan: LaunchPlan) -> bool:
        """Whether this process is the one that brings the pods' output, from now on."""
        return self._open_output(plan, self.follow(plan)).take()

    def _open_output(self, plan: LaunchPlan, watch: PodWatch) -> PodOutput:
        if self._output is None:
            run, cluster = RunFolder(Path(plan.run_dir)), self._cluster(plan.run_id)
            self._output = PodOutput(cluster, run, self._numbers(plan), watch.find)
        return self._output

    def _numbers(self, plan: LaunchPlan) -> Incarnations:
        if self._incarnations is None:
            self._incarnations = Incarnations(RunFolder(Path(plan.run_dir)))
        return self._incarnations

    def _save_outcome(self, plan: LaunchPlan, pod: PodView) -> None:
        """What the agent said in its termination message, where a shared folder would have it."""
        outcome = parse_outcome(pod.message)
        if outcome is None or pod.node_index is None:
            return
        incarnation = self._numbers(plan).number(pod.node_index, pod.uid, pod.restarts)
        folder = RunFolder(Path(plan.run_dir)).node_dir(pod.node_index, incarnation)
        with contextlib.suppress(OSError, DiskFullError):
            make_folders((str(folder),))
            write_atomically(folder / contract.OUTCOME_FILE, json.dumps(outcome, indent=2))

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
        kind = pods_of(plan).kind
        spec = {"runPolicy": {"suspend": True}} if kind == "pytorchjob" else {"suspend": True}
        self._cluster(plan.run_id).merge(self._place(plan), {"spec": spec})

    def stop(self, run_id: str, grace_s: float) -> None:
        """As ``Target.stop``; claims, and so checkpoints, are never touched."""
        plan = RunFolder(self._run_root / run_id).read_plan()
        cluster = self._cluster(run_id, pods_of(plan).namespace)
        if self._output is None:
            self.collect(plan)
        if self.read_job(plan) is not None:
            cluster.delete(self._place(plan))
        deadline = self._clock.monotonic() + math.ceil(grace_s) + STOP_MARGIN_S
        while cluster.list_objects("v1", "Pod", _selector(run_id))["items"]:
            if self._clock.monotonic() > deadline:
                raise TargetError(
                    f"pods of {run_id} are still ending",
                    f"kubectl get pods -n {cluster.namespace} -l {_selector(run_id)}",
                )
            self._clock.sleep(0.5)
        if self._output is not None:
            self._output.finish(LOG_LIMIT_S, self._clock)
        if self._watch is not None:
            self._watch.stop()

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
    return f"{contract.LABEL_RUN_ID}={run_id}"


def _masters(pods: PodSettings) -> int:
    return int(pods.has_master)


def _owner(item: Object) -> dict[str, Any]:
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
    }
