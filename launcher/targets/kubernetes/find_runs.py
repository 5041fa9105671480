"""Finds runs on a cluster, also those of other people, and borrows one that has no folder here."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.contract import protocol, typed
from launcher.contract.causes import RunState
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, TargetError
from launcher.follow.target import SUSPENDED, ListedRun
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import BORROWED_FILE, RunFolder, write_atomically
from launcher.runs.folder import find_run as find_in_folder
from launcher.targets.kubernetes.api.cluster import ANSWER_LIMIT_S, Cluster, Object, plural
from launcher.targets.kubernetes.api.kubeconfig import config_files, has_config, is_in_pod
from launcher.targets.kubernetes.api.refusals import FORBIDDEN, ApiError
from launcher.targets.kubernetes.cluster_job import (
    ClusterJob,
    read_cluster,
    read_cluster_record,
    write_cluster,
)
from launcher.targets.kubernetes.plan import parse_kept_plan
from launcher.targets.kubernetes.pods.collector import selector_of
from launcher.targets.kubernetes.pods.states import (
    count_wanted,
    is_suspended,
    parse_job_end,
    seconds_of,
)
from launcher.targets.kubernetes.render.code import LABEL as CODE_LABEL
from launcher.targets.kubernetes.render.kinds import API_OF_KIND
from launcher.targets.room import Left, Note

RUNNING = RunState.RUNNING.value
ON = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class JobObject:
    """A job's object with a run id; or the ConfigMap that a job left, with its plan."""

    item: Object

    @property
    def run_id(self) -> str:
        """By its label, which every object of a run has."""
        return str(self.item["metadata"]["labels"][protocol.LABEL_RUN_ID])

    @property
    def job_name(self) -> str:
        """By its label, else the object's own name."""
        metadata = self.item["metadata"]
        return str(metadata["labels"].get(protocol.LABEL_JOB) or metadata["name"])

    @property
    def created_at(self) -> float:
        """Seconds since the epoch."""
        return seconds_of(self.item["metadata"]["creationTimestamp"])


def read_jobs(cluster: Cluster) -> tuple[list[JobObject], list[str]]:
    """The namespace's jobs with a run id, and notes on kinds that this user may not list.

    Raises ``TargetError``, also if this user may list none of the kinds.
    """
    jobs: list[JobObject] = []
    refused: dict[str, ApiError] = {}
    known = 0
    for api_version, name in API_OF_KIND.values():
        try:
            items = cluster.list_objects(api_version, name, protocol.LABEL_RUN_ID)["items"]
        except ApiError as error:
            if not error.is_kind_missing:
                if error.status != FORBIDDEN:
                    raise
                refused[f"{plural(name)}.{api_version.partition('/')[0]}"] = error
            continue
        known += 1
        # An object with an owner is a part of another job, as the Jobs of a JobSet are.
        whole = (item for item in items if not item["metadata"].get("ownerReferences"))
        jobs += (JobObject(item=item) for item in whole)
    if refused and not known:
        raise next(iter(refused.values()))
    fix = f"{cluster.kubectl} auth can-i --list -n {cluster.namespace}"
    notes = [f"{kind} are left out: you may not list them; {fix}" for kind in refused]
    return jobs, notes


def list_run(run_root: Path, job: JobObject, now: float) -> ListedRun:
    """The row of a job; ``now`` in seconds since the epoch."""
    folder = run_root / job.run_id
    end = parse_job_end(job.item)
    state = SUSPENDED if is_suspended(job.item) else RUNNING
    if end is not None:
        state = (RunState.SUCCEEDED if end.exit_code == 0 else RunState.FAILED).value
    return ListedRun(
        run_id=job.run_id,
        job=job.job_name,
        target="kubernetes",
        state=state,
        cause=end.word if end else "",
        nnodes=count_wanted(job.item),
        age_s=max(0.0, round(now - job.created_at, 1)),
        folder=str(folder) if folder.is_dir() else "",
    )


def find_on_cluster(cluster: Cluster, name: str) -> JobObject | None:
    """The run with that id, beginning of an id, or job name; ``latest`` is the one made last.

    None if the namespace has none. Raises ``InputError`` if several fit, or ``TargetError``.
    """
    jobs, _ = read_jobs(cluster)
    oldest_first = sorted(jobs, key=lambda job: job.created_at)
    if name == protocol.LATEST_LINK:
        return oldest_first[-1] if oldest_first else None
    fits = _fitting(oldest_first, name) or _fitting(_read_left(cluster), name)[:1]
    fits = [job for job in fits if parse_job_end(job.item) is None] or fits
    if len(fits) > 1:
        ids = ", ".join(f"{job.run_id} ({job.item['kind']} {job.job_name})" for job in fits)
        raise InputError(
            f"{name!r} may be any of {ids}, in namespace {cluster.namespace}", "give the run id"
        )
    return fits[0] if fits else None


def _fitting(jobs: Sequence[JobObject], name: str) -> list[JobObject]:
    exact = [job for job in jobs if name in (job.run_id, job.job_name)]
    return exact or [job for job in jobs if job.run_id.startswith(name)]


def _read_left(cluster: Cluster) -> list[JobObject]:
    """What jobs have left that kubectl applied and deleted; empty if this user may not look."""
    with contextlib.suppress(ApiError):
        chosen = f"{protocol.LABEL_RUN_ID},!{CODE_LABEL}"
        maps = cluster.list_objects("v1", "ConfigMap", chosen)["items"]
        return [JobObject(item=m) for m in maps if not m["metadata"].get("ownerReferences")]
    return []


def find_left(arguments: Namespace) -> list[Left]:
    """What jobs have left that kubectl applied and deleted, where an option names a cluster."""
    if not (place := _place_in(arguments)):
        return []
    cluster, now = Cluster(**place), SystemClock().wall()
    there = {job.run_id for job in read_jobs(cluster)[0]}
    left = {job.run_id: job for job in _read_left(cluster) if job.run_id not in there}

    def remove(job: JobObject) -> None:
        plan = _read_plan(cluster, job, tempfile.gettempdir())
        ClusterJob(cluster, plan, SystemClock()).remove_left()

    return [
        Left(
            run_id=run_id,
            place=f"namespace {cluster.namespace}",
            age_s=now - job.created_at,
            size_bytes=0,
            remove=functools.partial(remove, job),
        )
        for run_id, job in left.items()
    ]


def _read_plan(cluster: Cluster, job: JobObject, run_dir: str) -> LaunchPlan:
    """The plan that the cluster keeps of a run. Raises ``InputError`` if there is none."""
    selector = f"{selector_of(job.run_id)},!{CODE_LABEL}"
    maps = cluster.list_objects("v1", "ConfigMap", selector)["items"]
    kept = [m for m in maps if protocol.NODE_TASK_FILE in (m.get("data") or {})]
    if not kept:
        raise InputError(
            f"the cluster keeps no plan of {job.run_id}: another version has submitted it",
            "the folder of its run, on the machine that submitted it; or "
            f"{cluster.kubectl} describe {job.item['kind'].lower()} {job.job_name} "
            f"-n {cluster.namespace}",
        )
    # A manifest that was changed and applied again left a ConfigMap per version.
    newest = max(kept, key=lambda m: str(m["metadata"]["creationTimestamp"]))
    try:
        return parse_kept_plan(newest["data"][protocol.NODE_TASK_FILE], run_dir)
    except ValueError as error:
        raise InputError(
            f"the plan in ConfigMap {newest['metadata']['name']} cannot be read here: "
            f"{str(error).splitlines()[0]}",
            "use the version of the launcher that submitted the run",
        ) from error


# -- runs that the options of a command lead to ---------------------------------------------------


def find_run(arguments: Namespace, run_root: Path) -> RunFolder:
    """The run, in its folder here or borrowed from the cluster. Raises ``InputError``."""
    name, place = arguments.run, _place_in(arguments)
    exact, there = run_root / name, Cluster(**place)
    is_here = (exact / protocol.PLAN_FILE).is_file()
    if is_here and not (name == protocol.LATEST_LINK and arguments.on == ON):
        run = RunFolder(exact.resolve())
    else:
        run = _borrow(there, arguments, run_root) or _find_here(there, run_root, name)
    if place and not run.is_borrowed:
        move_run(run, place)
    return run


def find_run_briefly(
    arguments: Namespace, run_root: Path, otherwise: InputError
) -> RunFolder | None:
    """Looks on the cluster for a run not found here, after a brief check that it answers.

    None if no cluster is configured. Raises ``InputError`` if the run is not there either.
    """
    there = Cluster(**_place_in(arguments))
    if not (is_in_pod() or has_config(there.kubeconfig or config_files())):
        return None
    try:
        with there.answers_within(ANSWER_LIMIT_S):
            there.read_version()
        if run := _borrow(there, arguments, run_root):
            return run
    except TargetError as error:
        raise InputError(f"{otherwise.what}; and {error.what}", otherwise.hint) from error
    raise InputError(f"{otherwise.what}, {_nor_in(there)}", otherwise.hint)


def _borrow(there: Cluster, arguments: Namespace, run_root: Path) -> RunFolder | None:
    """The run's folder here, or one for as long as the command, from the plan in the cluster.

    None if the cluster has no such run. Raises ``InputError`` if it keeps no plan that can be read.
    """
    if (job := find_on_cluster(there, arguments.run)) is None:
        return None
    if (run_root / job.run_id / protocol.PLAN_FILE).is_file():
        return RunFolder(run_root / job.run_id)
    folder = tempfile.TemporaryDirectory(prefix="launcher-run-", ignore_cleanup_errors=True)
    path = Path(arguments.until_end.enter_context(folder)).absolute() / job.run_id
    run = RunFolder(path)
    run.create(_read_plan(there, job, str(path)), "", job.created_at)
    write_cluster(path, there)
    write_atomically(path / BORROWED_FILE, "")
    return run


def _find_here(there: Cluster, run_root: Path, name: str) -> RunFolder:
    try:
        return find_in_folder(run_root, name, goes_on=True)
    except InputError as error:
        # Not the hint to cd: a run of a cluster may have no folder.
        what = f"{error.what}, {_nor_in(there)}"
        raise InputError(what, f"{typed.command('ps', '--all')} lists the runs") from error


def _nor_in(cluster: Cluster) -> str:
    return f"nor in namespace {cluster.namespace} of context {cluster.context}"


def list_runs(
    arguments: Namespace, run_root: Path, note: Note, *, everything: bool
) -> list[ListedRun]:
    """Runs that go on, oldest first; with ``everything``, also ended runs whose jobs are left.

    ``note`` takes lines about what is left out. Raises as ``read_jobs``.
    """
    jobs, notes = read_jobs(Cluster(**_place_in(arguments)))
    for line in notes:
        note(line)
    now = SystemClock().wall()
    rows = [list_run(run_root, job, now) for job in jobs]
    shown = [row for row in rows if everything or row.state in (RUNNING, SUSPENDED)]
    return sorted(shown, key=lambda row: -row.age_s)


def _place_in(arguments: Namespace) -> dict[str, str]:
    """The context, namespace and kubeconfig that the options name."""
    given = {key: getattr(arguments, key, None) for key in ("context", "namespace", "kubeconfig")}
    place = {key: str(value) for key, value in given.items() if value}
    if "kubeconfig" in place:
        place["kubeconfig"] = str(Path(place["kubeconfig"]).expanduser().absolute())
    return place


def move_run(run: RunFolder, place: dict[str, str]) -> None:
    """Looks for a run in ``place``, and records that place for later calls if the run is there.

    For a context that was renamed, or another kubeconfig. Raises ``InputError`` if the run is
    on no cluster or not there, ``TargetError`` if the cluster does not answer.
    """
    plan = run.read_plan()
    option = " ".join(f"--{key} {value}" for key, value in place.items())
    if plan.target != ON or plan.hold:
        fix = f"leave {option} out"
        if place.get("namespace", "").isdigit():
            lines = f"{typed.command('logs', run.run_id)} | tail -n {place['namespace']}"
            fix = f"-n names a namespace; the last lines: {lines}"
        raise InputError(f"{option}: {run.run_id} is on no cluster", fix)
    before = read_cluster_record(run.path)
    if before | place == before:
        return
    there = read_cluster(run.path, **place) or Cluster(**place)
    if ClusterJob(there, plan, SystemClock()).read_object() is None:
        raise InputError(
            f"{run.run_id} is not in namespace {there.namespace} of context {there.context}",
            f"leave {option} out: the run knows where it was submitted to",
        )
    write_cluster(run.path, there)
