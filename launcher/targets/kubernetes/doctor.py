"""``doctor`` for a cluster: namespace, rights, claims, Secrets, and dry runs of a job's objects.
Nothing is made or started."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from launcher.code.place import find_code
from launcher.code.record import PackedCode, read_code
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.doctor.finding import Finding, Status, failed, ok, warning
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan, new_run_id
from launcher.targets.kubernetes.api.cluster import Cluster, Object, ObjectPlace, plural
from launcher.targets.kubernetes.api.refusals import FORBIDDEN, ApiError
from launcher.targets.kubernetes.exec import check_door
from launcher.targets.kubernetes.plan import PodSettings, plan_kubernetes
from launcher.targets.kubernetes.render.code import check_size, tell_code
from launcher.targets.kubernetes.render.kinds import can_be_tried
from launcher.targets.kubernetes.render.manifest import render_losses, render_manifest
from launcher.targets.kubernetes.render.pod import TOKEN_VERBS, render_trial_pod

RIGHTS_FIX = "an admin of the namespace: k8s/base/rbac.yaml grants what is needed"
CLAIM, SECRET, PULL_SECRET = "PersistentVolumeClaim", "Secret", "image pull secret"
"""Checks of the objects that the job file names."""


def diagnose_kubernetes(
    job: JobSpec, run_root: Path, context: str | None = None, kubeconfig: str | None = None
) -> Iterator[Finding]:
    """As ``Room.diagnose``; None: the context or kubeconfig that kubectl would use.

    Every request is one that a user of the namespace may make.
    """
    cluster = Cluster(context, job.kubernetes.namespace, kubeconfig)
    try:
        version, context = cluster.read_version(), cluster.context
    except TargetError as error:
        yield failed("reachable", "cluster", error.what, error.hint)
        return
    yield ok("reachable", f"context {context}", f"Kubernetes {version}")
    if cluster.skips_verification:
        what = "TLS is not verified: whoever is on the way can read and change what is sent"
        fix = "certificate-authority in the kubeconfig instead of insecure-skip-tls-verify"
        yield warning("reachable", f"context {context}", what, fix)
    code = None
    try:
        place = find_code(job.command, job.code, job.workdir, Path.cwd())
        if place is not None:
            check_size(code := read_code(place, run_root))
            yield ok("code", code.record.root, tell_code(code))
    except LauncherError as error:
        yield failed("code", "job", error.what.partition("; the largest files")[0], error.hint)
        return
    try:
        plan = plan_kubernetes(
            job,
            run_id=new_run_id(job.name),
            run_root=str(run_root),
            cwd=str(Path.cwd()),
            place=place,
            code=code,
        )
    except LauncherError as error:
        yield failed("plan", "job", error.what, error.hint)
        return
    yield from _Diagnosis(cluster, plan, code).diagnose()


class _Diagnosis:
    """One job's objects against one namespace."""

    def __init__(self, cluster: Cluster, plan: LaunchPlan, code: PackedCode | None) -> None:
        self._cluster, self._plan, self._namespace = cluster, plan, cluster.namespace
        self._objects = render_manifest(plan, code=code).objects

    def diagnose(self) -> Iterator[Finding]:
        """All rows; only the namespace's if it is not there."""
        findings = list(self._asking("namespace", self._namespace, self._judge_namespace))
        yield from findings
        if any(finding.status is Status.FAILED for finding in findings):
            return
        for check, work in (
            ("rights", self._judge_rights),
            ("references", self._judge_references),
            ("dry run", self._judge_dry_run),
            ("pod", self._judge_pod),
        ):
            yield from self._asking(check, f"namespace {self._namespace}", work)
        fix = "take it out of the job where it is enforced"
        for loss in render_losses(self._plan):
            yield warning("pod security", "job", loss, fix)

    def _asking(
        self, check: str, where: str, work: Callable[[], Iterable[Finding]]
    ) -> Iterator[Finding]:
        """The findings of one question; a missing right to look is only a warning."""
        try:
            yield from work()
        except TargetError as error:
            if isinstance(error, ApiError) and error.status == FORBIDDEN:
                look = f"{self._cluster.kubectl} auth can-i --list -n {self._namespace}"
                fix = f"{look} shows your rights; an admin can call doctor too"
                yield warning(check, where, "you may not look at it", fix)
            else:
                yield failed(check, where, error.what, error.hint)

    def _judge_namespace(self) -> Iterator[Finding]:
        name = self._namespace
        if self._cluster.get(f"/api/v1/namespaces/{name}") is None:
            fix = f"{self._cluster.kubectl} create namespace {name}"
            fix += ", or kubernetes.namespace of the job"
            yield failed("namespace", name, "is not there", fix)
        else:
            yield ok("namespace", name, "is there")

    def _judge_rights(self) -> Iterator[Finding]:
        try:
            check_door(self._cluster, "exec, shell, hold and --debug start programs in pods")
        except InputError as error:
            yield warning("rights", "pods/exec", error.what, error.hint)
        for verb in TOKEN_VERBS:
            if not self._cluster.may(verb, "secrets"):
                what = f"you may not {verb} it: no token keeps others out of a run"
                yield warning("rights", "secrets", what, RIGHTS_FIX)
        made = ["create", "patch", "delete"]
        wanted = dict.fromkeys(map(_resource, self._objects), made)
        wanted[_resource(self._objects[-1])] = ["get", *made]
        # Following any kind of run needs these.
        wanted |= {"pods": ["list", "watch"], "pods/log": ["get"]}
        for resource, verbs in wanted.items():
            lacking = [verb for verb in verbs if not self._cluster.may(verb, resource)]
            if lacking:
                yield failed("rights", resource, f"you may not {', '.join(lacking)} it", RIGHTS_FIX)
            else:
                yield ok("rights", resource, ", ".join(verbs))

    def _judge_references(self) -> Iterator[Finding]:
        """What somebody else has to make before the job's pods can start."""
        pods, node = PodSettings.of(self._plan), self._plan.nodes[0]
        of_claim = functools.partial(judge_claim, node_count=node.max_nodes)
        for name in pods.claims:
            yield from self._judge_named(CLAIM, CLAIM, name, of_claim)
        if node.secrets:
            of_secret = functools.partial(judge_secret, keys=node.secrets)
            yield from self._judge_named(SECRET, SECRET, pods.secret, of_secret)
        for name in pods.image_pull_secrets:
            yield from self._judge_named(PULL_SECRET, SECRET, name, judge_pull_secret)

    def _judge_named(
        self, check: str, kind: str, name: str, judge: Callable[..., Finding]
    ) -> Iterator[Finding]:
        def read_and_judge() -> Iterator[Finding]:
            place = ObjectPlace(api_version="v1", kind=kind, name=name)
            yield judge(self._cluster.read_object(place), name, self._cluster)

        yield from self._asking(check, f"{kind} {name}", read_and_judge)

    def _judge_dry_run(self) -> Iterator[Finding]:
        """Tries each object as ``submit`` does, also after one was refused."""
        for item in filter(can_be_tried, self._objects):
            where = f"{item['kind']} {item['metadata']['name']}"
            is_job = item is self._objects[-1]
            dry_run = self._cluster.create if is_job else self._cluster.apply
            yield self._try("dry run", where, dry_run, item)

    def _try(self, check: str, where: str, send: Callable[..., Object], item: Object) -> Finding:
        """A dry run of one object; a 403 too is a failure: it may be a webhook's or a quota's."""
        try:
            send(item, dry_run=True)
        except ApiError as error:
            return failed(check, where, error.what, error.hint)
        return ok(check, where, "the server admits it")

    def _judge_pod(self) -> Iterator[Finding]:
        """Tries one of the job's pods: quotas, limits and Pod Security are checked on pods."""
        if not self._cluster.may("create", "pods"):
            return
        pod = render_trial_pod(self._plan)
        yield self._try("pod", "one of the job's", self._cluster.create, pod)


def _resource(item: Object) -> str:
    """An object's resource as kubectl names it: ``jobs.batch``."""
    group, slash, _ = item["apiVersion"].rpartition("/")
    return plural(item["kind"]) + (f".{group}" if slash else "")


# -- what a job names: None stands for an object that is not there. --------------------------------


def judge_secret(
    secret: Object | None, name: str, cluster: Cluster, keys: Sequence[str]
) -> Finding:
    """The Secret of the job's variables, which has to have ``keys``."""
    place, flag = f"Secret {name}", f"{name} -n {cluster.namespace}"
    if secret is None:
        values = "".join(f" --from-literal={key}=..." for key in keys)
        fix = f"{cluster.kubectl} create secret generic {flag}{values}"
        return failed(SECRET, place, "is not there", fix)
    missing = [key for key in keys if key not in (secret.get("data") or {})]
    if missing:
        patch = ", ".join(f'"{key}": "..."' for key in missing)
        fix = f"{cluster.kubectl} patch secret {flag} -p '{{\"stringData\": {{{patch}}}}}'"
        return failed(SECRET, place, f"has no {', '.join(missing)}", fix)
    return ok(SECRET, place, f"is there, with {', '.join(keys or secret.get('data') or ())}")


def judge_pull_secret(secret: Object | None, name: str, cluster: Cluster) -> Finding:
    """A Secret with which the nodes pull the image."""
    fix = (
        f"{cluster.kubectl} create secret docker-registry {name} -n {cluster.namespace} "
        "--docker-server=SERVER --docker-username=NAME --docker-password=PASSWORD"
    )
    if secret is None:
        return failed(PULL_SECRET, f"Secret {name}", "is not there", fix)
    if not str(secret.get("type")).startswith("kubernetes.io/dockerc"):
        what = f"is of type {secret.get('type')}, with which no image is pulled"
        return failed(PULL_SECRET, f"Secret {name}", what, fix)
    return ok(PULL_SECRET, f"Secret {name}", "is there")


def judge_claim(claim: Object | None, name: str, cluster: Cluster, node_count: int) -> Finding:
    """A claim to which ``node_count`` nodes write."""
    place, flag = f"{CLAIM} {name}", f"{name} -n {cluster.namespace}"
    if claim is None:
        fix = f"{cluster.kubectl} apply -f k8s/base/storage.yaml, as {flag}"
        return failed(CLAIM, place, "is not there", fix)
    phase = claim.get("status", {}).get("phase", "Pending")
    modes = claim["spec"].get("accessModes") or []
    look = f"{cluster.kubectl} describe pvc {flag}"
    if phase == "Pending":
        # This is right if the storage class waits for the first pod.
        return warning(CLAIM, place, "is not bound yet", look)
    if phase != "Bound":
        return failed(CLAIM, place, f"is {phase}", look)
    what = f"bound, {claim['status'].get('capacity', {}).get('storage', '?')}, {', '.join(modes)}"
    if node_count > 1 and not any(mode.endswith("Many") for mode in modes):
        what += f", for {node_count} nodes: pods on different nodes cannot share it"
        return warning(CLAIM, place, what, "name a claim with accessModes: [ReadWriteMany]")
    return ok(CLAIM, place, what)
