"""A run's job on its cluster: submitted, resized, suspended, deleted; refused if its name is taken,
or on another cluster."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.contract import protocol, typed
from launcher.contract.causes import Cause, NodeState
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError, TargetError
from launcher.contract.records import read_object
from launcher.contract.waits import wait_until
from launcher.follow.endings import Part
from launcher.follow.requests import read_withdrawn, write_size
from launcher.follow.target import Observation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.kubernetes.api.cluster import (
    ANSWER_LIMIT_S,
    IN_CLUSTER,
    Cluster,
    Object,
    ObjectPlace,
)
from launcher.targets.kubernetes.api.refusals import CONFLICT, ApiError, is_for_good
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.pods.collector import PodCollector, selector_of
from launcher.targets.kubernetes.pods.progress import describe_silence, read_reasons
from launcher.targets.kubernetes.pods.states import (
    count_wanted,
    is_suspended,
    parse_job_end,
    parse_pod,
    section,
)
from launcher.targets.kubernetes.render.kinds import API_OF_KIND, RENDERERS, can_be_tried
from launcher.targets.kubernetes.render.pod import render_trial_pod, token_name

CLUSTER_FILE = "cluster.json"
"""In the run folder: the run's kubeconfig, context and namespace, and the cluster's identity."""
END_MARGIN_S = 30.0
"""How long pods may be there after their grace."""
LEAST_TRIES_S = 5.0
"""How long the launcher tries to end a job whose grace is shorter, or that has not begun."""


class MayRunError(TargetError):
    """A submission failed, but the job may run; ``hint`` has the command that ends it."""


class AnotherClusterError(TargetError):
    """The context leads to another cluster than the run's; nothing is known of the run."""


class ClusterJob:
    """The job's object of one run, and its pods. Every method may raise ``TargetError``."""

    def __init__(self, cluster: Cluster, plan: LaunchPlan, clock: Clock) -> None:
        self.cluster, self.plan, self._clock = cluster, plan, clock
        self.pods = PodCollector(cluster, plan, clock)
        self._kind = PodSettings.of(plan).kind
        api_version, kind = API_OF_KIND[self._kind]
        self._place = ObjectPlace(api_version=api_version, kind=kind, name=plan.job_name)

    # -- submitting ------------------------------------------------------------------------------

    def submit(self, objects: Sequence[Object], notes: list[str]) -> None:
        """As ``Target.submit``; the job is the last of ``objects``. Adds to ``notes``.

        Raises ``MayRunError`` if the job may run although this failed.
        """
        cluster = self.cluster
        *others, job = objects
        if (held := cluster.read_object(self._place)) is not None:
            raise self._refuse_taken(held)
        try:
            if can_be_tried(job):
                cluster.create(job, dry_run=True)
            for item in others:
                cluster.apply(item, dry_run=True)
            notes += self._try_pod()
        finally:
            notes += cluster.warnings
        may_be_made = False
        made: Object | None = None
        try:
            # Before anything is made: later calls can then remove what a killed launcher leaves.
            make_folders((self.plan.run_dir,))
            write_cluster(Path(self.plan.run_dir), cluster)
            for item in others:
                cluster.apply(item)
            may_be_made = True
            made = cluster.create(job)
            owner = {key: made[key] for key in ("apiVersion", "kind")}
            owner |= {key: made["metadata"][key] for key in ("name", "uid")}
            for item in others:
                # What was made for the job is then deleted with it, also by kubectl.
                cluster.merge(ObjectPlace.of(item), {"metadata": {"ownerReferences": [owner]}})
        except BaseException as error:
            # A timeout of the server or of a proxy is no refusal.
            is_refused = isinstance(error, ApiError) and (
                error.status < 500 or "webhook" in error.what
            )
            may_run = made is not None or (may_be_made and not is_refused)
            self._withdraw(others, error, may_run=may_run)
            taken = isinstance(error, ApiError) and error.status == CONFLICT
            if taken and (held := cluster.read_object(self._place)) is not None:
                raise self._refuse_taken(held) from error  # by another submission just now
            raise

    def _withdraw(self, others: Sequence[Object], error: BaseException, *, may_run: bool) -> None:
        """Deletes what a submission that failed or was interrupted has made.

        ``may_run``: the server has made the job, or may make it later. Unless it is found and
        deleted, this then raises ``MayRunError`` and leaves what the job needs.
        """
        why = error
        try:
            with self.cluster.answers_within(LEAST_TRIES_S):
                if self.read_object() is not None:
                    self.cluster.delete(self._place)
                    may_run = False
        except (TargetError, KeyboardInterrupt) as failure:
            why = failure
        if may_run:
            cause = why.what if isinstance(why, TargetError) else str(why) or type(why).__name__
            cause = "interrupted" if isinstance(why, KeyboardInterrupt) else cause
            what = f"STILL RUNNING, perhaps: {self.plan.run_id}: {cause}"
            raise MayRunError(what, self.render_by_hand(keep=False)) from error
        is_taken = isinstance(error, ApiError) and error.status == CONFLICT
        with self.cluster.answers_within(LEAST_TRIES_S):
            for item in others:
                # The run that has taken the name just now needs the Service of that name.
                if not (is_taken and item["metadata"]["name"] == self._place.name):
                    with contextlib.suppress(TargetError):
                        self.cluster.delete(ObjectPlace.of(item))

    def _try_pod(self) -> list[str]:
        """Has the server admit one pod of the job and forget it.

        Returns notes if no pod can be made now, but may be later. Raises ``ApiError`` if none ever
        can: by Pod Security, by limits of the namespace, for lack of a service account.
        """
        try:
            self.cluster.create(render_trial_pod(self.plan), dry_run=True)
        except ApiError as error:
            if "cannot create resource" in error.what:
                # Controllers make the pods; this user need not have the right to.
                return []
            if is_for_good(error.what):
                raise
            return [f"a pod would not be admitted now: {error.what}"]
        return []

    def _refuse_taken(self, held: Object) -> InputError:
        """The error for a job whose name ``held`` has taken, with the commands that help."""
        kind, name, namespace = held["kind"], held["metadata"]["name"], self.cluster.namespace
        run_id = section(held, "metadata", "labels").get(protocol.LABEL_RUN_ID, "")
        if run_id and (Path(self.plan.run_dir).parent / run_id / protocol.PLAN_FILE).is_file():
            attach = typed.command("logs", "-f", run_id)
            fix = f"{attach} to attach, or {typed.command('stop', run_id)} to replace it"
        else:
            fix = (
                f"{self.cluster.kubectl} delete {kind.lower()} {name} -n {namespace} to replace it"
            )
        what = f"{kind} {name} is in namespace {namespace} already"
        return InputError(what, f"{fix}; or --set name=OTHER")

    # -- observing -------------------------------------------------------------------------------

    def read_object(self) -> Object | None:
        """The job's own object; None if it is gone, or is another run's by now.

        Raises ``AnotherClusterError`` if it is not found because this is another cluster.
        """
        item = self.cluster.read_object(self._place)
        labels = section(item or {}, "metadata", "labels")
        if item is not None and labels.get(protocol.LABEL_RUN_ID) == self.plan.run_id:
            self._keep_size(item)
            return item
        self._expect_its_cluster()
        return None

    def _keep_size(self, item: Object) -> None:
        """Records how many nodes the object asks for: whoever may change it, may scale the run."""
        run, planned = RunFolder(Path(self.plan.run_dir)), len(self.plan.nodes)
        nodes = min(count_wanted(item), planned)
        if run.is_there() and nodes != planned - len(read_withdrawn(run, self.plan)):
            write_size(run, nodes)

    def _expect_its_cluster(self) -> None:
        """Raises ``AnotherClusterError`` on another: k3s and kubeadm name all contexts alike."""
        known = read_cluster_record(Path(self.plan.run_dir)).get("identity")
        if known is None or is_same(known, there := self.cluster.read_identity()):
            return
        raise AnotherClusterError(
            f"context {self.cluster.context} leads to {there['server']}, which is not the cluster "
            f"that {self.plan.run_id} was submitted to ({known['server']})",
            f"name the kubeconfig of that one: {typed.command('status', self.plan.run_id)} "
            "--kubeconfig FILE",
        )

    def read_end(self) -> Part | None:
        """How the job ended; None while it goes on."""
        if (item := self.read_object()) is not None:
            return parse_job_end(item)
        message = f"somebody deleted {self._place.kind} {self._place.name}"
        return Part(words=message, cause=Cause.STOP_REQUESTED)

    def observe(self) -> Observation:
        """As ``Target.observe``; also says why pods are missing."""
        nodes = self.pods.observe()
        missing = {n for n, node in enumerate(nodes) if node.state is NodeState.MISSING}
        job = self.read_object() if missing or self.plan.is_elastic else None
        if missing := missing - read_withdrawn(RunFolder(Path(self.plan.run_dir)), self.plan):
            with contextlib.suppress(TargetError):
                reasons = read_reasons(self, job)
                if not reasons and len(missing) == len(nodes):
                    reasons = (describe_silence(self, job),)
                first = min(missing)
                nodes[first] = replace(nodes[first], detail="; ".join(reasons))
        going = [n for n, node in enumerate(nodes) if node.state is NodeState.RUNNING]
        has_claim = PodSettings.of(self.plan).checkpoint is not None
        if self.plan.is_elastic and not has_claim and 0 < 2 * len(going) <= len(nodes):
            minority = (
                f"{len(going)} of {len(nodes)} nodes run; without a claim in kubernetes.checkpoint "
                "they go on only if they are more than half of the last group"
            )
            nodes[going[0]] = replace(nodes[going[0]], detail=minority)
        return Observation(run_id=self.plan.run_id, nodes=tuple(nodes))

    # -- changing --------------------------------------------------------------------------------

    def scale(self, nodes: int) -> None:
        """Changes the number of pods. Raises ``InputError`` for a kind that keeps its size."""
        if self._kind not in ("pytorchjob", "job"):
            fix = "kubernetes.kind: pytorchjob or job, with nnodes: MIN:MAX"
            raise InputError(f"a {self._kind} keeps its size", fix)
        spec: Object = {"parallelism": nodes, "completions": nodes}
        if self._kind == "pytorchjob":
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": nodes}}}
        self._keep_size(self.cluster.merge(self._place, {"spec": spec}))

    def suspend(self) -> None:
        """Ends the pods and keeps the object, which may be resumed."""
        self.cluster.merge(self._place, self._suspension(True))

    def is_suspended(self) -> bool | None:
        """As ``Suspension.is_suspended``."""
        with contextlib.suppress(TargetError), self.cluster.answers_within(ANSWER_LIMIT_S):
            if (item := self.read_object()) is not None and parse_job_end(item) is None:
                return is_suspended(item)
        return None

    def remove(self) -> None:
        """Deletes the job, and with it what was made for it; its pods end later. Idempotent."""
        if self.read_object() is not None:
            self.cluster.delete(self._place)
        self.remove_left()

    def remove_left(self) -> None:
        """Deletes what was made for the job and is not deleted with it. Idempotent.

        A launcher that was killed leaves such objects, and so does kubectl. Leaves what this user
        may not see or delete.
        """
        token = ObjectPlace(api_version="v1", kind="Secret", name=token_name(self.plan))
        # A manifest's run has the job's name, and its Secret, if any, is somebody's own.
        tokens = [token] if self.plan.run_id != self.plan.job_name else []
        for place in (*self._find_left(), *tokens):
            with contextlib.suppress(TargetError):
                self.cluster.delete(place)

    def _find_left(self) -> Iterator[ObjectPlace]:
        """What was made for the job but is not deleted with it."""
        *others, _ = RENDERERS[self._kind](self.plan)
        selector = selector_of(self.plan.run_id)
        for version, kind in {(item["apiVersion"], item["kind"]): None for item in others}:
            with contextlib.suppress(TargetError):
                for item in self.cluster.list_objects(version, kind, selector)["items"]:
                    if not item["metadata"].get("ownerReferences"):
                        yield ObjectPlace.of(item)

    def end(self, notes: list[str], *, keep: bool) -> None:
        """Collects the last logs, and deletes the job or, with ``keep``, suspends it.

        Raises ``TargetError`` with the command to type if the job runs on.
        """
        try:
            with self.cluster.answers_within(ANSWER_LIMIT_S):
                self.pods.collect()
        except TargetError as error:
            # Users who may not see the pods may end the job all the same.
            notes.append(f"its last logs were not collected: {error.what}")
        try:
            with self.cluster.answers_within(max(self.plan.stop_grace_s, LEAST_TRIES_S)):
                (self.suspend if keep else self.remove)()
        except AnotherClusterError:
            raise
        except TargetError as error:
            end = None
            if isinstance(error, ApiError):
                with contextlib.suppress(TargetError):
                    end = self.read_end()
            what = error.what if end else f"STILL RUNNING: {self.plan.run_id}: {error.what}"
            raise TargetError(what, self.render_by_hand(keep=keep)) from error
        if not keep and (left := [f"{p.kind.lower()}/{p.name}" for p in self._find_left()]):
            by_hand = f"{self.cluster.kubectl_there} delete {' '.join(left)}"
            notes.append(f"what was made for the job is left; to delete it: {by_hand}")

    def wait_gone(self, grace_s: float, *, is_done: bool = False) -> None:
        """Waits until the pods of a job that was deleted have ended, and brings their last lines.

        ``is_done``: the training has ended, so a pod that still runs joined too late, and is not
        waited for. Raises ``TargetError`` if some are left ``END_MARGIN_S`` after their grace.
        """
        selector = selector_of(self.plan.run_id)

        def are_gone() -> bool:
            pods = self.cluster.list_objects("v1", "Pod", selector)["items"]
            return all(is_done and parse_pod(pod).state is not NodeState.EXITED for pod in pods)

        limit_s = math.ceil(grace_s) + END_MARGIN_S
        if not wait_until(are_gone, limit_s, 0.5, self._clock):
            raise TargetError(
                f"pods of {self.plan.run_id} are still ending",
                f"{self.cluster.kubectl} get pods -n {self.cluster.namespace} -l {selector}",
            )
        self.pods.close()

    # -- the same by hand ------------------------------------------------------------------------

    def render_by_hand(self, *, keep: bool) -> str:
        """The kubectl command that deletes the job or, with ``keep``, suspends it."""
        return self._patch(True) if keep else f"{self.cluster.kubectl} delete {self._named}"

    def render_looking(self) -> str:
        """The kubectl command that shows what the controllers say of the job."""
        return f"{self.cluster.kubectl} describe {self._named}"

    def render_resuming(self) -> str:
        """The kubectl command that has a suspended job go on."""
        return self._patch(False)

    def _patch(self, suspends: bool) -> str:
        patch = shlex.quote(json.dumps(self._suspension(suspends)))
        return f"{self.cluster.kubectl} patch {self._named} --type merge -p {patch}"

    def _suspension(self, suspends: bool) -> Object:
        spec = {"suspend": suspends}
        return {"spec": {"runPolicy": spec} if self._kind == "pytorchjob" else spec}

    @property
    def called(self) -> str:
        """The job's object as kubectl takes it."""
        return f"{self._place.kind.lower()} {self._place.name}"

    @property
    def _named(self) -> str:
        where = f"{self.called} -n {self.cluster.namespace}"
        if self.cluster.context != IN_CLUSTER and "--context" not in self.cluster.kubectl:
            where += f" --context {shlex.quote(self.cluster.context)}"
        return where


def is_same(known: Mapping[str, str], there: Mapping[str, str]) -> bool:
    """Whether two identities are of one cluster. The uid decides, if both have one."""
    if "uid" in known and "uid" in there:
        return known["uid"] == there["uid"]
    return all(known.get(key) == there.get(key) for key in ("server", "authority"))


def read_cluster_record(run_dir: Path) -> dict[str, Any]:
    """What ``write_cluster`` has written; empty if it has not."""
    return read_object(run_dir / CLUSTER_FILE)


def read_cluster(run_dir: Path, **given: str) -> Cluster | None:
    """The cluster that a run was submitted to; ``given`` overrides the record. None if unknown."""
    place = read_cluster_record(run_dir) | given
    if not {"context", "namespace"} <= place.keys():
        return None
    context = None if place["context"] == IN_CLUSTER else place["context"]
    return Cluster(context, place["namespace"], place.get("kubeconfig"), run_dir.name)


def write_cluster(run_dir: Path, cluster: Cluster) -> None:
    """Records the cluster for later calls. Raises ``TargetError`` if it does not answer."""
    record = {
        "context": cluster.context,
        "namespace": cluster.namespace,
        "identity": cluster.read_identity(),
        **({"kubeconfig": cluster.kubeconfig} if cluster.kubeconfig else {}),
    }
    write_atomically(run_dir / CLUSTER_FILE, json.dumps(record))
