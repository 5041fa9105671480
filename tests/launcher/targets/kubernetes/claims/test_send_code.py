"""Code that no ConfigMap takes: sent into one pod, got from there by the others and by later ones.

Init containers run as processes of this machine, each in a folder of its own in the place of
``/launcher``, at addresses of its own in the place of its pod's name.
"""

from __future__ import annotations

from tests.launcher.cluster_run import RUN_ID, ClusterRun
from tests.launcher.targets.kubernetes.test_send_code import (
    code_in,
    finish,
    plan_in,
    pods,
    port,
    project,
)


def test_a_pod_gets_the_code_from_the_claim_though_no_other_is_left(server, project, pods, port):
    plan = plan_in(project, port, run="pvc/storage")
    run = ClusterRun(server, project, plan, code_in(project))
    pods.start("train-0-a", 0)
    pods.start("train-1-a", 1)
    assert pods.has_code("train-0-a", project)
    assert pods.has_code("train-1-a", project)
    assert [path.parent.name for path in pods.claim.rglob("code-*.tar.gz")] == [RUN_ID]
    job = server.objects["jobs", "train"]
    finish(run)
    server.put("jobs", job)
    pods.start("train-0-b", 0, "20")
    assert pods.has_code("train-0-b", project)
    assert server.executed == ["train-0-a"]
