"""Lists all runs of a cluster's namespace, also those of other people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.reasons import RunState
from launcher.follow.target import ListedRun
from launcher.targets.kubernetes.api import PLURALS, ApiError, Cluster, Object, is_kind_missing
from launcher.targets.kubernetes.pod_states import is_suspended, parse_job_end
from launcher.targets.kubernetes.target import API_OF_KIND

RUNNING = RunState.RUNNING.value
SUSPENDED = "suspended"
FORBIDDEN = 403


def list_cluster_runs(
    run_root: Path, cluster: Cluster, now: float, *, everything: bool
) -> tuple[list[ListedRun], list[str]]:
    """Runs that go on (or ``everything`` that is left of others too), oldest first; and notes on
    kinds that this user may not list, which are left out.

    ``now`` in seconds since the epoch. Raises ``TargetError``, also where no kind may be listed.
    """
    jobs, notes = read_jobs(cluster)
    rows = [_row(run_root, item, kind, now) for kind, item in jobs]
    going_on = [row for row in rows if everything or row.state in (RUNNING, SUSPENDED)]
    return sorted(going_on, key=lambda row: -row.age_s), notes


def read_jobs(cluster: Cluster) -> tuple[list[tuple[str, Object]], list[str]]:
    """The namespace's jobs of this project, each with its kind; and notes on what was left out.

    Raises ``TargetError``, also where this user may list none of the kinds.
    """
    found: list[tuple[str, Object]] = []
    refused: dict[str, ApiError] = {}
    known = 0
    for kind, (api_version, name) in API_OF_KIND.items():
        try:
            found += [(kind, item) for item in _read_jobs(cluster, api_version, name)]
            known += 1
        except ApiError as error:
            if not is_kind_missing(error):
                if error.status != FORBIDDEN:
                    raise
                refused[f"{PLURALS[name]}.{api_version.partition('/')[0]}"] = error
    if refused and not known:
        raise next(iter(refused.values()))
    fix = f"kubectl auth can-i --list -n {cluster.namespace}"
    notes = [f"{kind} are left out: you may not list them; {fix}" for kind in refused]
    return found, notes


def _read_jobs(cluster: Cluster, api_version: str, kind: str) -> Iterator[Object]:
    """Those of this project that no other object has made, such as the Jobs of a JobSet."""
    found = cluster.list_objects(api_version, kind, protocol.LABEL_RUN_ID)
    yield from (item for item in found["items"] if not item["metadata"].get("ownerReferences"))


def _row(run_root: Path, item: Object, kind: str, now: float) -> ListedRun:
    metadata = item["metadata"]
    run_id = metadata["labels"][protocol.LABEL_RUN_ID]
    folder = run_root / run_id
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    end = parse_job_end(item)
    state = SUSPENDED if is_suspended(item) else RUNNING
    if end is not None:
        state = (RunState.SUCCEEDED if end.succeeded else RunState.FAILED).value
    return ListedRun(
        run_id=run_id,
        job=metadata["name"],
        target="kubernetes",
        state=state,
        reason=end.word if end else "",
        nnodes=count_nodes(item, kind),
        age_s=round(now - created.timestamp(), 1),
        folder=str(folder) if folder.is_dir() else "",
    )


def count_nodes(item: Object, kind: str) -> int:
    """How many pods a job's object asks for."""
    spec = item["spec"]
    if kind == "pytorchjob":
        return sum(int(one.get("replicas", 1)) for one in spec["pytorchReplicaSpecs"].values())
    if kind == "trainjob":
        return int((spec.get("trainer") or {}).get("numNodes", 1))
    if kind == "jobset":
        jobs = (one["template"]["spec"] for one in spec["replicatedJobs"])
        return sum(int(one.get("parallelism", 1)) for one in jobs)
    return int(spec.get("parallelism", 1))
