"""Rules for PyTorchJobs that the operator's webhook lets through: names, restart and clean-up
policies, processes and GPUs, elastic bounds.

Source: the training operator's webhook, defaults and controller at v1.9.4.
"""

from __future__ import annotations

import re

from launcher.manifests.checks.pods import check_pod
from launcher.manifests.checks.rules import Breaches, Rule, hit
from launcher.manifests.pytorchjob import DNS_1035, NPROC_WORDS, PyTorchJob, Replica, operator_env
from launcher.manifests.source import Value, count_gpus

MAX_LABEL = 63
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
CLEAN_POD_POLICIES = ("Running", "All", "None")
WRITTEN_OUT = ("minReplicas", "maxReplicas", "maxRestarts", "rdzvId")
ENGINES = re.compile(
    r"torchrun|torch\.distributed|launcher|agent|accelerate|deepspeed|\.sh\b|\.pyz"
)
"""Commands that start a worker for each process, or scripts that may do so."""


def check_pytorchjob(item: Value) -> Breaches:
    """One PyTorchJob."""
    job = PyTorchJob(item=item)
    yield from _check_name(item, job)
    yield from _check_run_policy(job)
    yield from _check_world(job)
    if job.elastic:
        yield from _check_elastic(job)
    for replica in job.replicas:
        yield from _check_replica(job, replica)
        yield from check_pod(replica.pod)


def _check_name(item: Value, job: PyTorchJob) -> Breaches:
    """The name of the job, and the longest name that is derived from it."""
    place, longest = item["metadata"]["name"], f"{job.name}-worker-999"
    if not job.name and item["metadata"]["generateName"]:
        return
    if not DNS_1035.fullmatch(job.name):
        fix = "small letters, digits and hyphens, a letter first"
        yield hit(Rule.JOB_NAME, place, f"name {job.name!r} is no DNS label", fix)
    elif len(longest) > MAX_LABEL:
        what = f"name of {len(job.name)} characters makes {longest}"
        fix = f"at most {len(job.name) - (len(longest) - MAX_LABEL)} characters"
        yield hit(Rule.JOB_NAME, place, what, fix)


def _check_replica(job: PyTorchJob, replica: Replica) -> Breaches:
    policy, pod = replica.spec["restartPolicy"], replica.pod
    if replica.restart_policy not in RESTART_POLICIES:
        fix = f"one of {', '.join(RESTART_POLICIES)}"
        yield hit(Rule.RESTART_POLICY_VALUE, policy, f"restartPolicy {policy.text}", fix)
    if replica.restart_policy == "Always":
        yield hit(Rule.RESTART_ALWAYS, policy, "restartPolicy Always", "OnFailure or ExitCode")
    if pod["restartPolicy"]:
        fix = "remove it; write restartPolicy beside replicas"
        what = "restartPolicy in the pod's template"
        yield hit(Rule.POD_RESTART_POLICY, pod["restartPolicy"], what, fix)
    if replica.container is not None:
        yield from _check_container(job, replica, replica.container)


def _check_container(job: PyTorchJob, replica: Replica, container: Value) -> Breaches:
    injected = dict(operator_env(job, replica))
    for variable in container["env"]:
        name, value = variable["name"].text, variable["value"].text
        if name in injected and value != injected[name]:
            what = f"{name}={value or '...'} will be {injected[name]!r}"
            yield hit(Rule.ENV_OVERRIDDEN, variable, what, "remove it, or another name")
    if container["readinessProbe"]:
        what = "a readiness probe in a training pod"
        fix = "remove it; a startup or liveness probe of the agent does no such harm"
        yield hit(Rule.READINESS_PROBE, container["readinessProbe"], what, fix)
    if not _has_engine(container):
        yield from _check_command(job, container)


def _check_command(job: PyTorchJob, container: Value) -> Breaches:
    """A command that starts one process, though the environment is for several."""
    if job.elastic:
        what = "an elastic job whose command is not torchrun"
        yield hit(Rule.ELASTIC_SUCCESS, container["command"], what, "torchrun train.py ...")
    elif job.counted > 1:
        what = f"nprocPerNode {job.nproc_per_node}, but the command is not torchrun"
        fix = "torchrun train.py ..., or nprocPerNode: '1'"
        yield hit(Rule.RANK_COUNTS_PODS, container["command"], what, fix)


def _has_engine(container: Value) -> bool:
    words = [word.text for key in ("command", "args") for word in container[key]]
    return not words or "python" not in " ".join(words) or bool(ENGINES.search(" ".join(words)))


def _check_run_policy(job: PyTorchJob) -> Breaches:
    policy = job.run_policy
    clean, backoff = policy["cleanPodPolicy"], policy["backoffLimit"]
    if job.clean_pod_policy not in CLEAN_POD_POLICIES:
        fix = f"one of {', '.join(CLEAN_POD_POLICIES)}"
        yield hit(Rule.CLEAN_POD_POLICY_VALUE, clean, f"cleanPodPolicy {clean.text}", fix)
    elif job.clean_pod_policy == "None":
        what = f"cleanPodPolicy {clean.text or 'not written, which is None'}"
        has_ttl = policy["ttlSecondsAfterFinished"].number is not None
        by_code = any(replica.restart_policy == "ExitCode" for replica in job.replicas)
        if has_ttl and by_code:
            what += "; a TTL does not begin after an exit code of 1 to 127 under ExitCode"
        if by_code or not has_ttl:
            yield hit(Rule.CLEAN_POD_POLICY_NONE, clean, what, "cleanPodPolicy: Running")
    if backoff.number is not None and backoff.number < 0:
        yield hit(Rule.BACKOFF_NEGATIVE, backoff, f"backoffLimit {backoff.text}", "0 or more")
    elif backoff and any(r.restart_policy == "ExitCode" for r in job.replicas):
        fix = "restartPolicy: OnFailure, or no backoffLimit"
        yield hit(Rule.BACKOFF_WITH_EXIT_CODE, backoff, "backoffLimit beside ExitCode", fix)
    if policy["activeDeadlineSeconds"]:
        what = "activeDeadlineSeconds as the only guard against a hang"
        fix = "also a limit in the pod: a watchdog, or timeout before the command"
        yield hit(Rule.DEADLINE_IS_LATE, policy["activeDeadlineSeconds"], what, fix)


def _check_world(job: PyTorchJob) -> Breaches:
    if job.master is None and job.worker is not None and not job.elastic and job.worker.pods > 1:
        what = f"{job.worker.pods} workers, neither Master nor elasticPolicy"
        fix = "elasticPolicy: {minReplicas: ..., maxReplicas: ...}, or a Master"
        yield hit(Rule.NO_ADDRESS, job.spec["pytorchReplicaSpecs"], what, fix)
    place = job.spec["nprocPerNode"] or job.elastic["nProcPerNode"] or job.spec["nprocPerNode"]
    for replica in job.replicas:
        gpus = count_gpus(replica.container) if replica.container else None
        if job.nproc_per_node in NPROC_WORDS:
            if job.nproc_per_node == "auto" and not gpus:
                what = "nprocPerNode auto without GPUs"
                yield hit(Rule.NPROC_AUTO, place, what, "nprocPerNode: '1', or another number")
                return
        elif gpus is not None and job.nproc_per_node != str(gpus):
            what = f"nprocPerNode {job.nproc_per_node}, {gpus} GPUs in a pod of {replica.kind}"
            yield hit(Rule.NPROC_NOT_GPUS, place, what, f"nprocPerNode: '{gpus}'")
            return


def _check_elastic(job: PyTorchJob) -> Breaches:
    policy, (low, high) = job.elastic, job.bounds
    pods = job.worker.pods if job.worker else low
    if not 1 <= low <= pods <= high:
        what = f"minReplicas {low}, replicas {pods}, maxReplicas {high}"
        yield hit(Rule.ELASTIC_BOUNDS, policy, what, "1 <= minReplicas <= replicas <= maxReplicas")
    missing = [key for key in WRITTEN_OUT if not policy[key]]
    if job.worker is not None and not job.worker.spec["replicas"]:
        missing.append("replicas of the Worker")
    if missing:
        what = f"not written: {', '.join(missing)}"
        yield hit(Rule.ELASTIC_UNWRITTEN, policy, what, "write each of them")
    if job.master is not None:
        what = "a Master beside an elasticPolicy"
        yield hit(Rule.ELASTIC_MASTER, policy, what, "Worker alone, or no elasticPolicy")
    if policy["rdzvConf"].data == []:
        yield hit(Rule.RDZV_CONF_EMPTY, policy["rdzvConf"], "rdzvConf: []", "remove it")
    if policy["standalone"].data is True:
        yield hit(Rule.STANDALONE, policy["standalone"], "standalone: true", "remove it")
