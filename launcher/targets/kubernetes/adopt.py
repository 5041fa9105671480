"""A run of a cluster without a folder here, found by its job's name: the cluster has its plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.follow.requests import write_size
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import BORROWED_FILE, RunFolder, write_atomically
from launcher.targets.kubernetes.api import Cluster, Object
from launcher.targets.kubernetes.listing import count_nodes, read_jobs
from launcher.targets.kubernetes.plan import parse_kept_plan
from launcher.targets.kubernetes.target import write_cluster


@dataclass(frozen=True, kw_only=True)
class Found:
    """A job's object of this project, and its kind by the job file's word."""

    kind: str
    item: Object

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""
        return str(self.item["metadata"]["labels"][protocol.LABEL_RUN_ID])

    @property
    def job_name(self) -> str:
        """What the job is called."""
        return str(self.item["metadata"]["name"])

    @property
    def created_at(self) -> float:
        """Seconds since the epoch."""
        return datetime.fromisoformat(self.item["metadata"]["creationTimestamp"]).timestamp()


def find_on_cluster(cluster: Cluster, name: str) -> Found | None:
    """The run of that id, beginning of an id, or job's name; ``latest`` is the one made last.

    None where the namespace has none. Raises ``InputError`` where several fit, ``TargetError``.
    """
    jobs, _ = read_jobs(cluster)
    found = sorted((Found(kind=k, item=item) for k, item in jobs), key=lambda one: one.created_at)
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


def adopt_run(cluster: Cluster, found: Found, run_root: Path) -> RunFolder:
    """Makes a folder of the run that lasts as long as its caller keeps it.

    Raises ``InputError`` where the cluster has no plan of the run that can be read here.
    """
    path = run_root.absolute() / found.run_id
    plan = _read_plan(cluster, found, str(path))
    run = RunFolder(path)
    run.create(plan, "", found.created_at)
    write_cluster(path, cluster)
    write_atomically(path / BORROWED_FILE, "")
    size = count_nodes(found.item, found.kind)
    if size < len(plan.nodes):
        write_size(run, size)
    return run


def _read_plan(cluster: Cluster, found: Found, run_dir: str) -> LaunchPlan:
    """The plan that the cluster keeps of a run. Raises ``InputError`` where there is none."""
    selector = f"{protocol.LABEL_RUN_ID}={found.run_id}"
    maps = cluster.list_objects("v1", "ConfigMap", selector)["items"]
    kept = [one for one in maps if protocol.NODE_TASK_FILE in (one.get("data") or {})]
    if not kept:
        raise InputError(
            f"the cluster keeps no plan of {found.run_id}: another version has submitted it",
            f"the folder of its run, on the machine that submitted it; or kubectl describe "
            f"{found.item['kind'].lower()} {found.job_name} -n {cluster.namespace}",
        )
    # Applied again after a change, a manifest has left one for each version.
    newest = max(kept, key=lambda one: str(one["metadata"]["creationTimestamp"]))
    try:
        return parse_kept_plan(newest["data"][protocol.NODE_TASK_FILE], run_dir)
    except ValueError as error:
        raise InputError(
            f"the plan in ConfigMap {newest['metadata']['name']} cannot be read here: "
            f"{str(error).splitlines()[0]}",
            "use the version of the launcher that submitted the run",
        ) from error
