"""Stacks and open terminals in pods, by exec: has the agents look at their workers, and says which
rights that needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState
from launcher.contract.errors import InputError, TargetError
from launcher.contract.records import dump_record
from launcher.follow.look import NOT_STARTED, keep_look
from launcher.follow.target import Door
from launcher.targets.at_once import at_once
from launcher.targets.docker_options import PYTHON
from launcher.targets.kubernetes.pods.states import PodView, newest_of_each

if TYPE_CHECKING:
    from launcher.contract.reports.look import LookRequest
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.runs.folder import RunFolder
    from launcher.targets.kubernetes.api.cluster import Cluster
    from launcher.targets.kubernetes.cluster_job import ClusterJob

EXEC_VERBS = ("create", "get")
"""Rights on pods/exec: a websocket is a GET, and since Kubernetes 1.35 it needs create too."""
LOOK_SCRIPT = f"""
cd "$0" 2>/dev/null && cd "$(ls | sort -n | tail -n 1)" || exit 0
printf %s "$2" >".look.$$" && mv ".look.$$" {protocol.LOOK_REQUEST} || exit
left=$3
while [ ! -e "{protocol.LOOKS_DIR}/$1/{protocol.LOOK_FILE}" ] && [ $left -gt 0 ]; do
    sleep 0.1; left=$((left - 1))
done
echo
cd "{protocol.LOOKS_DIR}/$1" 2>/dev/null || exit 0
for file in *.json; do echo "$file"; tr -d '\\n' <"$file"; echo; done
"""
"""Runs in a pod, with the node's folder, the look's id, the request, and the limit in tenths of a
second. Prints nothing where no agent has begun; else an empty line, then each file's name, and its
text on one line."""


def check_exec(cluster: Cluster, what: str) -> None:
    """Raises ``InputError`` if this user may not start programs in pods, as ``what`` needs."""
    if not all(cluster.may(verb, "pods/exec") for verb in EXEC_VERBS):
        raise _may_not(cluster, f"{what}, and you may not create and get pods/exec")


def check_door(cluster: Cluster, what: str) -> None:
    """As ``check_exec``, for ``kubectl exec``, which reads the pod first."""
    check_exec(cluster, what)
    if not cluster.may("get", "pods"):
        raise _may_not(cluster, f"{what} by kubectl exec, and you may not get pods")


def _may_not(cluster: Cluster, what: str) -> InputError:
    return InputError(f"{what} in namespace {cluster.namespace}", "k8s/base/rbac.yaml grants it")


def collect_looks(
    job: ClusterJob, run: RunFolder, plan: LaunchPlan, request: LookRequest, limit_s: float
) -> Mapping[int, str]:
    """As for any target. Raises ``InputError`` for a user who may not start programs in pods."""
    cluster = job.cluster
    check_exec(cluster, "stacks are taken in the pods")
    nodes = PurePosixPath(plan.nodes[0].log_dir).parents[1]
    tenths = str(int(limit_s * 10))

    def look_into(pod: PodView) -> str:
        assert pod.node_index is not None, "newest_of_each has nodes alone"
        if pod.state is not NodeState.RUNNING:
            return f"{pod.name} has ended" if pod.state is NodeState.EXITED else NOT_STARTED
        folder = str(nodes / str(pod.node_index))
        argv = ("sh", "-c", LOOK_SCRIPT, folder, request.id, dump_record(request), tenths)
        try:
            lines = cluster.execute(pod.name, pod.container, argv).splitlines()
        except TargetError as error:
            return error.what
        if not lines:
            return NOT_STARTED
        files = dict(zip(lines[1::2], lines[2::2], strict=False))
        return keep_look(run, pod.node_index, request.id, files)

    pods = newest_of_each(job.pods.read_pods())
    answers = dict(zip(pods, at_once(look_into, pods.values()), strict=True))
    absent = {node.node_index for node in plan.nodes} - pods.keys()
    return {i: why for i, why in answers.items() if why} | dict.fromkeys(absent, "it has no pod")


def open_door(job: ClusterJob, plan: LaunchPlan, node_index: int) -> Door:
    """As ``Target.door``, by kubectl."""
    check_door(job.cluster, "programs are started in the pods")
    pod = newest_of_each(job.pods.read_pods()).get(node_index)
    if pod is None or pod.state is not NodeState.RUNNING:
        what = f"node {node_index} of {plan.run_id} does not run"
        raise TargetError(what, typed.command("status", plan.run_id))
    enter = (*shlex.split(job.cluster.kubectl_there), "exec", pod.name, "--stdin")
    words = (f"--container={pod.container}", "--")
    return Door(
        words=(*enter, *words),
        at_terminal=(*enter, "--tty", *words),
        python=PYTHON,
        archive=protocol.CONTAINER_AGENT,
    )
