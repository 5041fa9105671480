"""Why a job has no pods, from its object and its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.targets.kubernetes.pod_notes import same_words
from launcher.targets.kubernetes.pod_states import (
    BAD_ENDS,
    GOOD_ENDS,
    Object,
    seconds_of,
    section,
    true_conditions,
)

ORDINARY = (*GOOD_ENDS, *BAD_ENDS, "Created", "Running")
"""Types of conditions that do not explain missing pods."""
CLOCK_STEP_S = 1.0
"""Times of objects are whole seconds."""


def names_with_events(name: str, kind: str) -> tuple[str, ...]:
    """Names of the objects that make the pods of a job, and so carry the events."""
    return (name, f"{name}-node-0") if kind in ("jobset", "trainjob") else (name,)


def tell_news(job: Object, events: Iterable[Object], namespace: str) -> tuple[str, ...]:
    """What keeps the job's pods from being made; each message once, the latest last."""
    lines = (*_conditions(job), *_warnings(job, events, namespace))
    return tuple({same_words(line): line for line in lines}.values())


def is_taken_up(job: Object) -> bool:
    """Whether a controller has written anything into the job's status."""
    return bool(job.get("status"))


def _conditions(job: Object) -> Iterator[str]:
    for kind, condition in true_conditions(job).items():
        if kind not in ORDINARY:
            said = condition.get("message") or condition.get("reason") or ""
            called = f"{job.get('kind')} {section(job, 'metadata').get('name')}"
            yield f"{called}: {kind}{f': {said}' if said else ''}"


def _warnings(job: Object, events: Iterable[Object], namespace: str) -> Iterator[str]:
    made_at = seconds_of(section(job, "metadata").get("creationTimestamp") or "")
    for event in sorted(events, key=_at):
        # Events of an earlier job of the same name may still be there.
        if event.get("type") == "Warning" and _at(event) >= made_at - CLOCK_STEP_S:
            about = section(event, "involvedObject")
            kind, name = str(about.get("kind")), about.get("name")
            message = " ".join((event.get("message") or "").split())
            fix = find_fix(message, namespace)
            fix = fix or f"kubectl describe {kind.lower()} {name} -n {namespace}"
            yield f"{kind} {name}: {event.get('reason')}: {message}; {fix}"


def _at(event: Object) -> float:
    stamps = (
        section(event, "series").get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        section(event, "metadata").get("creationTimestamp"),
    )
    return next((seconds_of(stamp) for stamp in stamps if stamp), 0.0)


def find_fix(message: str, namespace: str) -> str:
    """The fix for a pod that the server refused; empty where none is known."""
    if "exceeded quota" in message or "failed quota" in message:
        return f"kubectl describe quota -n {namespace}; then resources: of the job"
    if "PodSecurity" in message:
        return f"take out of the job what it names, or kubectl describe namespace {namespace}"
    if "LimitRange" in message or "per Container" in message or "per Pod" in message:
        return f"kubectl describe limits -n {namespace}; then resources: of the job"
    return ""
