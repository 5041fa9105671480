"""Rules for Indexed Jobs with their Service, JobSets, and TrainJobs with their runtimes.

Sources: Kubernetes' Job and Service, JobSet at v0.12, Kubeflow Trainer at v2.3.
"""

from __future__ import annotations

from launcher.manifests.checks.pods import check_env, check_pod
from launcher.manifests.checks.rules import Breaches, Rule, expect, hit
from launcher.manifests.pytorchjob import DNS_1035
from launcher.manifests.source import Together, Value, object_name, object_namespace

MAX_LABEL = 63
MAX_REPLICATED = 20
"""How long the name of a replicated job may be under Kubeflow Trainer, from v2.4 on."""
JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
"""The labels that the Job controller adds to those of the template."""
POD_SUFFIX = 6
"""How many characters a controller adds to make a pod's name unique."""
NODE = "node"
"""The name of the replicated job, and of its container, that get the trainer's variables."""


def check_length(item: Value, longest: str, suffix: int = 0) -> Breaches:
    """The name of an object, and the ``longest`` name that is derived from it."""
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


def check_job(item: Value, together: Together) -> Breaches:
    """A Job; if its pods do not work together, only the rules for pods apply.

    Indexed Jobs with more completions than pods at a time work through a list of tasks.
    """
    spec, pod = item["spec"], item["spec"]["template"]["spec"]
    pods = spec["parallelism"].number or 1
    indexed = spec["completionMode"].text == "Indexed"
    at_once = indexed and spec["completions"].number in (None, pods)
    is_gang = pods > 1 and (at_once or bool(pod["subdomain"]))
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


def _check_policies(spec: Value, indexed: bool, pods: int) -> Breaches:
    if indexed:
        yield from _check_counts(spec, pods)
    yield from expect(Rule.JOB_NOT_INDEXED, spec["completionMode"], "Indexed", "NonIndexed")
    yield from expect(
        Rule.JOB_RESTART_POLICY, spec["template"]["spec"]["restartPolicy"], "Never", "Always"
    )
    ignored = (
        condition["type"].text
        for rule in spec["podFailurePolicy"]["rules"]
        for condition in rule["onPodConditions"]
        if rule["action"].text == "Ignore"
    )
    if "DisruptionTarget" not in ignored:
        what = "no podFailurePolicy that ignores DisruptionTarget"
        rule = "{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}"
        fix = f"podFailurePolicy: {{rules: [{rule}]}}"
        yield hit(Rule.JOB_DISRUPTION, spec["podFailurePolicy"], what, fix)


def _check_counts(spec: Value, pods: int) -> Breaches:
    more = f", parallelism {pods}"
    yield from expect(Rule.JOB_COUNTS, spec["completions"], str(pods), more=more)


def _check_service(item: Value, together: Together) -> Breaches:
    subdomain = item["spec"]["template"]["spec"]["subdomain"]
    namespace = object_namespace(item)
    service = together.find("Service", subdomain.text, namespace)
    if service is None:
        what = f"no Service {subdomain.text} of namespace {namespace} in what is checked"
        yield hit(Rule.SERVICE_ABSENT, subdomain, what, "a headless Service of that name")
        return
    spec = service["spec"]
    ready = spec["publishNotReadyAddresses"]
    yield from expect(Rule.SERVICE_NOT_HEADLESS, spec["clusterIP"], "None")
    yield from expect(Rule.SERVICE_UNREADY, ready, "true", "false")
    yield from _check_selector(item, spec)
    if together.is_later(service, item):
        fix = "move the Service before the Job"
        yield hit(Rule.SERVICE_LATE, service["kind"], "the Service comes after its Job", fix)


def _check_selector(item: Value, service: Value) -> Breaches:
    labels = dict(item["spec"]["template"]["metadata"]["labels"].data or {})
    labels |= dict.fromkeys(JOB_LABELS, object_name(item))
    selector = dict(service["selector"].data or {})
    wrong = [key for key, value in selector.items() if labels.get(key) != value]
    if wrong or not selector:
        what = f"selector {', '.join(wrong)} matches no pod" if wrong else "no selector"
        fix = f"selector: {{{JOB_LABELS[0]}: {object_name(item)}}}"
        yield hit(Rule.SERVICE_SELECTOR, service["selector"], what, fix)


# -- JobSet --------------------------------------------------------------------------------------


def check_jobset(item: Value, together: Together) -> Breaches:
    """A JobSet whose pods are started again all together."""
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


def _check_replicated(item: Value, replicated: Value) -> Breaches:
    job = replicated["template"]["spec"]
    pods, jobs = job["parallelism"].number or 1, replicated["replicas"].number or 1
    yield from check_pod(job["template"]["spec"], training=pods * jobs > 1)
    longest = f"{object_name(item)}-{replicated['name'].text}-{jobs - 1}-{pods - 1}"
    yield from check_length(item, longest, POD_SUFFIX)
    if pods * jobs == 1:
        return
    yield from expect(Rule.JOBSET_BACKOFF, job["backoffLimit"], "0", "6")
    yield from expect(Rule.JOB_RESTART_POLICY, job["template"]["spec"]["restartPolicy"], "Never")
    if pods > 1:
        yield from _check_counts(job, pods)
        if job["completionMode"]:
            yield from expect(Rule.JOB_NOT_INDEXED, job["completionMode"], "Indexed")


# -- TrainJob ------------------------------------------------------------------------------------


def check_trainjob(item: Value, together: Together) -> Breaches:
    """One TrainJob; its runtime is an object of its own, checked if it is among the files."""
    trainer = item["spec"]["trainer"]
    nodes = trainer["numNodes"].number or 1
    yield from check_length(item, f"{object_name(item)}-{NODE}-0-{nodes - 1}", POD_SUFFIX)
    if not trainer:
        what, fix = "no spec.trainer", "trainer: {numNodes: ...}"
        yield hit(Rule.TRAINJOB_NO_TRAINER, trainer, what, fix)
    yield from check_env(trainer)


def check_runtime(item: Value, together: Together) -> Breaches:
    """A TrainingRuntime or ClusterTrainingRuntime with a torch policy."""
    torch = item["spec"]["mlPolicy"]["torch"]
    if not torch:
        return
    if torch["elasticPolicy"]:
        place, fix = torch["elasticPolicy"], "remove it; elastic jobs are PyTorchJobs"
        yield hit(Rule.TRAINJOB_ELASTIC, place, "an elasticPolicy in a runtime", fix)
    jobs = item["spec"]["template"]["spec"]["replicatedJobs"]
    pods = {job["name"].text: job["template"]["spec"]["template"]["spec"] for job in jobs}
    containers = [c["name"].text for c in pods[NODE]["containers"]] if NODE in pods else []
    if NODE not in containers:
        names = {job: [c["name"].text for c in pod["containers"]] for job, pod in pods.items()}
        found = ", ".join(f"{job}: {' '.join(inside)}" for job, inside in names.items())
        fix = "a replicated job called node with a container called node"
        yield hit(Rule.TRAINJOB_CONTAINER, jobs, f"found {found or 'nothing'}", fix)
    for job in jobs:
        if (length := len(job["name"].text)) > MAX_REPLICATED:
            what = f"a replicated job's name of {length} characters"
            fix = f"at most {MAX_REPLICATED} characters"
            yield hit(Rule.REPLICATED_NAME, job["name"], what, fix)
    for pod in pods.values():
        yield from check_pod(pod)
