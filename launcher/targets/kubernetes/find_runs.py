"""Finds runs on a cluster, also those of other people, and borrows one that has no folder here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.contract.reasons import RunState
from launcher.follow.requests import write_size
from launcher.follow.target import ListedRun
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import BORROWED_FILE, RunFolder, write_atomically
from launcher.targets.kubernetes.api import FORBIDDEN, ApiError, Cluster, Object, plural
from launcher.targets.kubernetes.cluster_job import API_OF_KIND, write_cluster
from launcher.targets.kubernetes.code import LABEL as CODE_LABEL
from launcher.targets.kubernetes.kubeconfig import kubectl
from launcher.targets.kubernetes.plan import parse_kept_plan
from launcher.targets.kubernetes.pod_states import is_suspended, parse_job_end

RUNNING = RunState.RUNNING.value
SUSPENDED = "suspended"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A job's object of this project, and its kind by the job file's word."""

    kind: str
    item: Object

    @property
    def run_id(self) -> str:
        return str(self.item["metadata"]["labels"][protocol.LABEL_RUN_ID])

    @property
    def job_name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def created_at(self) -> float:
        """Seconds since the epoch."""
        return datetime.fromisoformat(self.item["metadata"]["creationTimestamp"]).timestamp()

    @property
    def nodes(self) -> int:
        """How many pods the object asks for."""
        spec = self.item["spec"]
        if self.kind == "pytorchjob":
            return sum(int(one.get("replicas", 1)) for one in spec["pytorchReplicaSpecs"].values())
        if self.kind == "trainjob":
            return int((spec.get("trainer") or {}).get("numNodes", 1))
        if self.kind == "jobset":
            jobs = (one["template"]["spec"] for one in spec["replicatedJobs"])
            return sum(int(one.get("parallelism", 1)) for one in jobs)
        return int(spec.get("parallelism", 1))


def read_jobs(cluster: Cluster) -> tuple[list[Found], list[str]]:
    """The namespace's jobs of this project, and notes on kinds that this user may not list.

    Raises ``TargetError``, also where this user may list none of the kinds.
    """
    found: list[Found] = []
    refused: dict[str, ApiError] = {}
    known = 0
    for kind, (api_version, name) in API_OF_KIND.items():
        try:
            items = cluster.list_objects(api_version, name, protocol.LABEL_RUN_ID)["items"]
        except ApiError as error:
            if not error.is_kind_missing:
                if error.status != FORBIDDEN:
                    raise
                refused[f"{plural(name)}.{api_version.partition('/')[0]}"] = error
            continue
        known += 1
        # Others are made by an object that is found itself, such as the Jobs of a JobSet.
        own = (item for item in items if not item["metadata"].get("ownerReferences"))
        found += (Found(kind=kind, item=item) for item in own)
    if refused and not known:
        raise next(iter(refused.values()))
    fix = f"{kubectl()} auth can-i --list -n {cluster.namespace}"
    notes = [f"{kind} are left out: you may not list them; {fix}" for kind in refused]
    return found, notes


def list_run(run_root: Path, job: Found, now: float) -> ListedRun:
    """The row of a job; ``now`` in seconds since the epoch."""
    folder = run_root / job.run_id
    end = parse_job_end(job.item)
    state = SUSPENDED if is_suspended(job.item) else RUNNING
    if end is not None:
        state = (RunState.SUCCEEDED if end.succeeded else RunState.FAILED).value
    return ListedRun(
        run_id=job.run_id,
        job=job.job_name,
        target="kubernetes",
        state=state,
        reason=end.word if end else "",
        nnodes=job.nodes,
        age_s=round(now - job.created_at, 1),
        folder=str(folder) if folder.is_dir() else "",
    )


def find_on_cluster(cluster: Cluster, name: str) -> Found | None:
    """The run of that id, beginning of an id, or job's name; ``latest`` is the one made last.

    None where the namespace has none. Raises ``InputError`` where several fit, ``TargetError``.
    """
    jobs, _ = read_jobs(cluster)
    found = sorted(jobs, key=lambda one: one.created_at)
    if name == protocol.LATEST_LINK:
        return found[-1] if found else None
    exact = [one for one in found if name in (one.run_id, one.job_name)]
    fits = exact or [one for one in found if one.run_id.startswith(name)]
    if len(fits) > 1:
        ids = ", ".join(f"{one.run_id} ({one.item['kind']} {one.job_name})" for one in fits)
        raise InputError(
            f"{name!r} may be any of {ids}, in namespace {cluster.namespace}", "give the run id"
        )
    return fits[0] if fits else None


def borrow_run(cluster: Cluster, found: Found, run_root: Path) -> RunFolder:
    """Makes a folder of the run, by the plan that the cluster keeps; the caller removes it.

    Raises ``InputError`` where the cluster has no plan of the run that can be read here.
    """
    path = run_root.absolute() / found.run_id
    plan = _read_plan(cluster, found, str(path))
    run = RunFolder(path)
    run.create(plan, "", found.created_at)
    write_cluster(path, cluster)
    write_atomically(path / BORROWED_FILE, "")
    if found.nodes < len(plan.nodes):
        write_size(run, found.nodes)
    return run


def _read_plan(cluster: Cluster, found: Found, run_dir: str) -> LaunchPlan:
    """The plan that the cluster keeps of a run. Raises ``InputError`` where there is none."""
    selector = f"{protocol.LABEL_RUN_ID}={found.run_id},!{CODE_LABEL}"
    maps = cluster.list_objects("v1", "ConfigMap", selector)["items"]
    kept = [one for one in maps if protocol.NODE_TASK_FILE in (one.get("data") or {})]
    if not kept:
        raise InputError(
            f"the cluster keeps no plan of {found.run_id}: another version has submitted it",
            f"the folder of its run, on the machine that submitted it; or {kubectl()} describe "
            f"{found.item['kind'].lower()} {found.job_name} -n {cluster.namespace}",
        )
    # A manifest that was changed and applied again has left one for each version.
    newest = max(kept, key=lambda one: str(one["metadata"]["creationTimestamp"]))
    try:
        return parse_kept_plan(newest["data"][protocol.NODE_TASK_FILE], run_dir)
    except ValueError as error:
        raise InputError(
            f"the plan in ConfigMap {newest['metadata']['name']} cannot be read here: "
            f"{str(error).splitlines()[0]}",
            "use the version of the launcher that submitted the run",
        ) from error
