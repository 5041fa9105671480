"""What a cluster itself tells of a run: its job's conditions, its pods' times, its events.

For a report where no folder of the run is at hand. ``tell_story`` is pure.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.contract import protocol
from launcher.contract.reasons import reason_of_exit_code
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.report import NodeReport, Said, Story, write_story
from launcher.targets.kubernetes.api import ApiError
from launcher.targets.kubernetes.pod_states import Object, PodView, parse_outcome, parse_pod
from launcher.targets.kubernetes.render_pod import pods_of
from launcher.targets.kubernetes.target import KubernetesTarget

TOLD_BY_PODS = ("Scheduled", "Pulling", "Pulled", "Created", "Started")
TOLD_BY_THE_JOB = ("SuccessfulCreate", "SuccessfulCreatePod", "SuccessfulCreateService")
"""Reasons of events that say what the objects say themselves."""


def bring_story(
    run: RunFolder, plan: LaunchPlan, target: KubernetesTarget, claim: Path | None
) -> None:
    """Puts what the cluster has of a run into its folder here, and what the claim has.

    ``claim`` is the root of the claim of ``kubernetes.run`` as this machine sees it; None where it
    does not, unless it is mounted here as in the pods. Raises ``TargetError``.
    """
    pods_here, job = target.pods(plan), target.read_job(plan)
    raw, events = pods_here.read_raw()
    masters = int(pods_of(plan).has_master)
    views = sorted((parse_pod(pod, masters) for pod in raw), key=lambda v: (v.created, v.name))
    numbers = {view.uid: pods_here.number_of(view) for view in views if view.node_index is not None}
    with contextlib.suppress(ApiError):
        # Who may not read logs gets a report without them.
        pods_here.read_logs()
    if (folder := _folder_on_claim(plan, claim)) is not None:
        _link_all(folder, run.path)
    pods = {pod["metadata"]["uid"]: pod for pod in raw}
    said = tell_story(plan.job_name, job, pods, views, numbers, events)
    nodes = [
        tell_node(view, pods[view.uid], numbers[view.uid]) for view in views if view.uid in numbers
    ]
    write_story(run, Story(said=tuple(said), nodes=tuple(nodes)))


# -- what happened --------------------------------------------------------------------------------


def tell_story(
    name: str,
    job: Object | None,
    pods: Mapping[str, Object],
    views: Sequence[PodView],
    numbers: Mapping[str, int],
    events: Sequence[Object],
) -> list[Said]:
    """All that has a time, oldest first.

    ``pods`` by uid as the server has them, ``views`` of the same; ``numbers`` are incarnations.
    """
    found = [*_of_job(job)]
    for view in views:
        if view.node_index is not None:
            found += _of_pod(view, pods[view.uid], numbers[view.uid])
    places = {v.uid: (v.node_index, numbers[v.uid]) for v in views if v.node_index is not None}
    began_at = found[0].at if found else 0.0
    uid = job["metadata"]["uid"] if job else ""
    found += (
        said for event in events for said in tell_event(event, name, uid, places) if
        said.at >= began_at
    )  # fmt: skip
    return sorted(found, key=lambda said: said.at)


def _of_job(job: Object | None) -> Iterator[Said]:
    if job is None:
        return
    yield Said(at=_seconds(job["metadata"]["creationTimestamp"]), place=None, text="job made")
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and (stamp := condition.get("lastTransitionTime")):
            why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            text = f"job {condition['type']}{f' ({why})' if why else ''}"
            yield Said(at=_seconds(stamp), place=None, text=text)


def _of_pod(view: PodView, pod: Object, number: int) -> Iterator[Said]:
    assert view.node_index is not None, "looked at by the caller"
    place, before = (view.node_index, number), (view.node_index, max(number - 1, 0))
    yield Said(at=_seconds(view.created), place=place, text=f"pod {view.name} made")
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if (text := _of_condition(condition, pod)) and condition.get("lastTransitionTime"):
            yield Said(at=_seconds(condition["lastTransitionTime"]), place=place, text=text)
    own = _own_status(view, status)
    yield from _of_container(own.get("lastState") or {}, before)
    yield from _of_container(own.get("state") or {}, place)


def _own_status(view: PodView, status: Object) -> Object:
    named = [s for s in status.get("containerStatuses") or () if s.get("name") == view.container]
    return named[0] if named else {}


def _of_condition(condition: Object, pod: Object) -> str:
    kind, is_true = condition.get("type"), condition.get("status") == "True"
    if kind == "PodScheduled" and is_true:
        node = (pod.get("spec") or {}).get("nodeName")
        return f"placed on {node}" if node else ""
    if kind == "PodScheduled":
        return f"cannot be placed: {condition.get('message', '')}"
    if kind == "DisruptionTarget" and is_true:
        return f"disrupted: {condition.get('message') or condition.get('reason', '')}"
    return ""


def _of_container(state: Object, place: tuple[int, int]) -> Iterator[Said]:
    running, terminated = state.get("running") or {}, state.get("terminated") or {}
    if stamp := running.get("startedAt") or terminated.get("startedAt"):
        yield Said(at=_seconds(stamp), place=place, text="container started")
    if not terminated:
        return
    outcome = parse_outcome(terminated.get("message") or "") or {}
    if first := outcome.get("first"):
        how = first.get("message") or first.get("cause", "")
        text = f"rank {first.get('rank')} ended: {how}"
        yield Said(at=float(first.get("at") or 0.0), place=place, text=text)
    if stamp := terminated.get("finishedAt"):
        said = f"container ended: exit code {terminated.get('exitCode')}"
        word = outcome.get("reason") or terminated.get("reason")
        yield Said(at=_seconds(stamp), place=place, text=f"{said}{f' ({word})' if word else ''}")


def tell_event(
    event: Object, name: str, job_uid: str, places: Mapping[str, tuple[int, int]]
) -> Iterator[Said]:
    """An event of the job or of one of its pods, also those that are gone; of others nothing.

    ``places`` are those of the pods that are there, by their uid.
    """
    about, reason = event.get("involvedObject") or {}, event.get("reason", "")
    uid = about.get("uid", "")
    pattern = rf"{re.escape(name)}-(?:node-0-|worker-|master-)?\d+(-[a-z0-9]+)?"
    is_gone_pod = about.get("kind") == "Pod" and re.fullmatch(pattern, about.get("name", ""))
    if uid not in (job_uid, *places) and not is_gone_pod:
        return
    if reason in TOLD_BY_THE_JOB or (uid in places and reason in TOLD_BY_PODS):
        return
    stamp = next(
        filter(None, (event.get(k) for k in ("lastTimestamp", "eventTime", "firstTimestamp"))),
        event["metadata"].get("creationTimestamp"),
    )
    times = f" ({event['count']} times)" if (event.get("count") or 1) > 1 else ""
    who = "" if uid in places or uid == job_uid else f"{about.get('name')}: "
    said = " ".join((event.get("message") or "").split())
    text = f"{who}{reason}: {said}{times}"
    yield Said(at=_seconds(stamp), place=places.get(uid), text=text)


def tell_node(view: PodView, pod: Object, number: int) -> NodeReport:
    """What a report says of a node whose agent left no word: by its container's end."""
    own = _own_status(view, pod.get("status") or {})
    state = own.get("state") or {}
    running, terminated = state.get("running") or {}, state.get("terminated") or {}
    code, trouble = view.exit_code, view.trouble
    phases: dict[str, float] = {}
    if started := running.get("startedAt") or terminated.get("startedAt"):
        phases["starting"] = round(max(0.0, _seconds(started) - _seconds(view.created)), 3)
        if finished := terminated.get("finishedAt"):
            phases["running"] = round(_seconds(finished) - _seconds(started), 3)
    assert view.node_index is not None, "looked at by the caller"
    return NodeReport(
        node_index=view.node_index,
        incarnation=number,
        reason=None if code is None else reason_of_exit_code(code).value,
        exit_code=code,
        detail=f"{trouble.value}: {view.message}" if trouble else "",
        phases_s=phases,
    )


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


# -- the claim ------------------------------------------------------------------------------------


def _folder_on_claim(plan: LaunchPlan, claim: Path | None) -> Path | None:
    """The run's folder on its claim, where this machine sees it."""
    run = pods_of(plan).run
    if run is None:
        return None
    inside = Path(dict(plan.nodes[0].env).get(protocol.RUN_DIR, protocol.CONTAINER_RUN_DIR))
    folder = inside if claim is None else claim / inside.relative_to(protocol.CONTAINER_RUN_DIR)
    return folder if folder.is_dir() else None


def _link_all(source: Path, target: Path) -> None:
    """Copies the ledger and what nodes say, and leads to their logs; what is here already stays."""
    for path in source.rglob("*"):
        to = target / path.relative_to(source)
        if path.is_dir() or to.exists():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        copy: Callable[[Path, Path], Any] = shutil.copyfile
        if path.suffix not in (".json", ".jsonl"):
            copy = lambda one, other: other.symlink_to(one.absolute())  # noqa: E731
        with contextlib.suppress(OSError):
            copy(path, to)
