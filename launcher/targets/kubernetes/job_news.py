"""Why a job has no pods: what its object and its events say, for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.targets.kubernetes.pod_notes import same_words
from launcher.targets.kubernetes.pod_states import BAD_ENDS, GOOD_ENDS, Object, seconds_of

ORDINARY = (*GOOD_ENDS, *BAD_ENDS, "Created", "Running")
"""Types of conditions that say nothing about pods that are missing."""
CLOCK_STEP_S = 1.0
"""Times of objects are whole seconds."""


def names_with_events(name: str, kind: str) -> tuple[str, ...]:
    """Names of the objects that make the pods of a job: events lie on those."""
    return (name, f"{name}-node-0") if kind in ("jobset", "trainjob") else (name,)


def tell_news(job: Object, events: Iterable[Object], namespace: str) -> tuple[str, ...]:
    """What keeps the job's pods from being made, the latest last, each once."""
    found: dict[str, str] = {}
    for line in (*_conditions(job), *_warnings(job, events, namespace)):
        found[same_words(line)] = line
    return tuple(found.values())


def is_taken_up(job: Object) -> bool:
    """Whether a controller has written anything into the job's status."""
    return bool(job.get("status"))


def _conditions(job: Object) -> Iterator[str]:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") not in ORDINARY:
            said = condition.get("message") or condition.get("reason") or ""
            yield f"{_called(job)}: {condition['type']}{f': {said}' if said else ''}"


def _warnings(job: Object, events: Iterable[Object], namespace: str) -> Iterator[str]:
    made_at = seconds_of((job.get("metadata") or {}).get("creationTimestamp") or "")
    for event in sorted(events, key=_at):
        # An earlier job of the same name has left events too.
        if event.get("type") == "Warning" and _at(event) >= made_at - CLOCK_STEP_S:
            about = event.get("involvedObject") or {}
            called = f"{about.get('kind')} {about.get('name')}"
            message = " ".join((event.get("message") or "").split())
            kind = str(about.get("kind")).lower()
            fix = find_fix(message, namespace) or (
                f"kubectl describe {kind} {about.get('name')} -n {namespace}"
            )
            yield f"{called}: {event.get('reason')}: {message}; {fix}"


def _at(event: Object) -> float:
    series = event.get("series") or {}
    stamps = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return next((seconds_of(stamp) for stamp in stamps if stamp), 0.0)


def _called(item: Object) -> str:
    return f"{item.get('kind')} {(item.get('metadata') or {}).get('name')}"


def find_fix(message: str, namespace: str) -> str:
    """What to do about a pod that the server did not admit; empty for what is not known here."""
    if "exceeded quota" in message or "failed quota" in message:
        return f"kubectl describe quota -n {namespace}; then resources: of the job"
    if "PodSecurity" in message:
        return f"take out of the job what it names, or kubectl describe namespace {namespace}"
    if "LimitRange" in message or "per Container" in message or "per Pod" in message:
        return f"kubectl describe limits -n {namespace}; then resources: of the job"
    return ""
