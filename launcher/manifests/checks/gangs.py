"""Rules for clusters without the training operator: Indexed Jobs with their Service, and JobSets.

Sources: Kubernetes' Job and Service, JobSet at v0.12.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.manifests.checks.fields import check_fields
from launcher.manifests.checks.pods import check_pod
from launcher.manifests.checks.rules import Breach, Rule, hit
from launcher.manifests.pytorchjob import DNS_1035
from launcher.manifests.source import Together, Value, object_name

MAX_LABEL = 63
JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
"""What the Job controller puts on each of its pods, besides the template's labels."""
POD_SUFFIX = 6
"""Characters that make a pod's name unique."""


def check_length(item: Value, longest: str, suffix: int = 0) -> Iterator[Breach]:
    """The name of an object, and the ``longest`` that is derived from it."""
    place, name = item["metadata"]["name"], object_name(item)
    if not name and item["metadata"]["generateName"]:
        return
    if not DNS_1035.fullmatch(name):
        fix = "small letters, digits and hyphens, a letter first"
        yield hit(Rule.JOB_NAME, place, f"name {name!r} is no DNS label", fix)
    elif len(longest) + suffix > MAX_LABEL:
        spare = len(name) - (len(longest) + suffix - MAX_LABEL)
        what = f"name of {len(name)} characters makes {longest}"
        yield hit(Rule.JOB_NAME, place, what, f"at most {spare} characters")


# -- Job and Service ----------------------------------------------------------------------------


def check_job(item: Value, together: Together) -> Iterator[Breach]:
    """A Job; one whose pods do not work together is held to the rules for pods alone."""
    spec, pod = item["spec"], item["spec"]["template"]["spec"]
    pods = spec["parallelism"].number or 1
    indexed = spec["completionMode"].text == "Indexed"
    is_gang = pods > 1 and (indexed or bool(pod["subdomain"]))
    yield from check_pod(pod, training=is_gang)
    if not is_gang:
        return
    yield from check_length(item, f"{object_name(item)}-{pods - 1}")
    yield from _check_policies(spec, indexed, pods)
    if pod["subdomain"]:
        yield from _check_service(item, together)
    else:
        fix = "subdomain: the name of a headless Service"
        yield hit(Rule.JOB_SUBDOMAIN, pod["subdomain"], "no subdomain", fix)


def _check_policies(spec: Value, indexed: bool, pods: int) -> Iterator[Breach]:
    pod, completions = spec["template"]["spec"], spec["completions"]
    if not indexed:
        mode = spec["completionMode"]
        fix = "completionMode: Indexed"
        yield hit(Rule.JOB_NOT_INDEXED, mode, f"completionMode {mode.text or 'NonIndexed'}", fix)
    elif completions.number != pods:
        what = f"completions {completions.text or 'not written'}, parallelism {pods}"
        yield hit(Rule.JOB_COUNTS, completions, what, f"completions: {pods}")
    if pod["restartPolicy"].text != "Never":
        what = f"restartPolicy {pod['restartPolicy'].text or 'not written'}"
        yield hit(Rule.JOB_RESTART_POLICY, pod["restartPolicy"], what, "restartPolicy: Never")
    if not _ignores_disruption(spec):
        what = "no podFailurePolicy that ignores DisruptionTarget"
        rule = "{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}"
        fix = f"podFailurePolicy: {{rules: [{rule}]}}"
        yield hit(Rule.JOB_DISRUPTION, spec["podFailurePolicy"], what, fix)


def _ignores_disruption(spec: Value) -> bool:
    return any(
        rule["action"].text == "Ignore" and condition["type"].text == "DisruptionTarget"
        for rule in spec["podFailurePolicy"]["rules"]
        for condition in rule["onPodConditions"]
    )


def _check_service(item: Value, together: Together) -> Iterator[Breach]:
    subdomain = item["spec"]["template"]["spec"]["subdomain"]
    service = together.find("Service", subdomain.text)
    if service is None:
        what = f"no Service {subdomain.text} in what is checked"
        yield hit(Rule.SERVICE_ABSENT, subdomain, what, "a headless Service of that name")
        return
    spec = service["spec"]
    if spec["clusterIP"].text != "None":
        what = f"clusterIP {spec['clusterIP'].text or 'not written'}"
        yield hit(Rule.SERVICE_NOT_HEADLESS, spec["clusterIP"], what, "clusterIP: None")
    if spec["publishNotReadyAddresses"].data is not True:
        what = "publishNotReadyAddresses is not true"
        fix = "publishNotReadyAddresses: true"
        yield hit(Rule.SERVICE_UNREADY, spec["publishNotReadyAddresses"], what, fix)
    yield from _check_selector(item, spec)
    if together.is_later(service, item):
        fix = "move the Service before the Job"
        yield hit(Rule.SERVICE_LATE, service["kind"], "the Service comes after its Job", fix)


def _check_selector(item: Value, service: Value) -> Iterator[Breach]:
    labels = dict(item["spec"]["template"]["metadata"]["labels"].data or {})
    labels |= dict.fromkeys(JOB_LABELS, object_name(item))
    selector = dict(service["selector"].data or {})
    wrong = [key for key, value in selector.items() if labels.get(key) != value]
    if wrong or not selector:
        what = f"selector {', '.join(wrong)} matches no pod" if wrong else "no selector"
        fix = f"selector: {{{JOB_LABELS[0]}: {object_name(item)}}}"
        yield hit(Rule.SERVICE_SELECTOR, service["selector"], what, fix)


# -- JobSet --------------------------------------------------------------------------------------


def check_jobset(item: Value, together: Together) -> Iterator[Breach]:
    """A JobSet, as one gang that is started again as a whole."""
    yield from check_fields(item)
    spec = item["spec"]
    if spec["network"]["publishNotReadyAddresses"].data is False:
        place = spec["network"]["publishNotReadyAddresses"]
        fix = "publishNotReadyAddresses: true"
        yield hit(Rule.JOBSET_UNREADY, place, "publishNotReadyAddresses: false", fix)
    if spec["failurePolicy"]["maxRestarts"].number is None:
        what, fix = "failurePolicy.maxRestarts is not written", "failurePolicy: {maxRestarts: 3}"
        yield hit(Rule.JOBSET_MAX_RESTARTS, spec["failurePolicy"], what, fix)
    for replicated in spec["replicatedJobs"]:
        yield from _check_replicated(item, replicated)


def _check_replicated(item: Value, replicated: Value) -> Iterator[Breach]:
    job = replicated["template"]["spec"]
    pods, jobs = job["parallelism"].number or 1, replicated["replicas"].number or 1
    yield from check_pod(job["template"]["spec"], training=pods * jobs > 1)
    longest = f"{object_name(item)}-{replicated['name'].text}-{jobs - 1}-{pods - 1}"
    yield from check_length(item, longest, POD_SUFFIX)
    if pods * jobs == 1:
        return
    backoff, policy = job["backoffLimit"], job["template"]["spec"]["restartPolicy"]
    if backoff.number != 0:
        what = f"backoffLimit {backoff.text or 'not written, which is 6'}"
        yield hit(Rule.JOBSET_BACKOFF, backoff, what, "backoffLimit: 0")
    if policy.text != "Never":
        what = f"restartPolicy {policy.text or 'not written'}"
        yield hit(Rule.JOB_RESTART_POLICY, policy, what, "restartPolicy: Never")
    if pods > 1 and job["completionMode"].text not in ("", "Indexed"):
        mode = job["completionMode"]
        yield hit(Rule.JOB_NOT_INDEXED, mode, f"completionMode {mode.text}", "Indexed")
    if pods > 1 and job["completions"].number != pods:
        what = f"completions {job['completions'].text or 'not written'}, parallelism {pods}"
        yield hit(Rule.JOB_COUNTS, job["completions"], what, f"completions: {pods}")
