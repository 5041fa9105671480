"""Asks a cluster why a job has no pods."""

from __future__ import annotations

from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.api import ApiError, Cluster, Object
from launcher.targets.kubernetes.job_news import is_taken_up, names_with_events, tell_news
from launcher.targets.kubernetes.render_pod import pods_of

FORBIDDEN = 403


def read_news(cluster: Cluster, plan: LaunchPlan, job: Object | None) -> tuple[str, ...]:
    """What the job's conditions and events say, each in a line; nothing where the job is gone.

    Raises ``TargetError``. A user who may not read events is told so where no condition speaks.
    """
    if job is None:
        return ()
    kind, namespace = pods_of(plan).kind, cluster.namespace
    events: list[Object] = []
    refused = ""
    try:
        for name in names_with_events(plan.job_name, kind):
            chosen = f"involvedObject.name={name}"
            events += cluster.list_objects("v1", "Event", "", fields=chosen)["items"]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        refused = f"events may say why, but you may not list them: {error.hint}"
    told = tell_news(job, events, namespace)
    if told or not refused:
        return told
    return (refused,)


def tell_silence(cluster: Cluster, plan: LaunchPlan, job: Object | None) -> str:
    """A line for where no pod was made for a while, and nothing says why."""
    kind = pods_of(plan).kind
    called = f"{kind} {plan.job_name} -n {cluster.namespace}"
    if job is not None and not is_taken_up(job):
        return (
            f"no controller has taken up {kind} {plan.job_name}: is the operator running? "
            f"kubectl get pods -A; kubectl describe {called}"
        )
    return f"{kind} {plan.job_name} has no pod, and no event says why; kubectl describe {called}"
