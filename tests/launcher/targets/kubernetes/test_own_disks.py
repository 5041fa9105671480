"""What is on a pod's own disk, and pods that come when the training is done."""

import time

import pytest

from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import plan_in, put_pod
from tests.launcher.fake_cluster import ended

LATE_S = 3.0
"""How late a busy machine may be."""
CREATING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"nnodes": 1}, "names no claim; fix: --set kubernetes.checkpoint=pvc/CLAIM"),
        ({}, "; after a loss the other nodes wait for a new pod unless they are more than half;"),
        ({"kubernetes": {"checkpoint": "pvc/storage"}}, ""),
    ],
)
def test_checkpoints_that_go_with_their_pods_are_told_before_anything_is_made(
    fields, told, server, tmp_path
):
    target = KubernetesTarget(tmp_path / "runs")
    target.check(plan_in(tmp_path, image="example/train:1", **fields))
    assert len(target.notes) == bool(told)
    assert told in "".join(target.notes)
    assert not server.objects


def test_an_image_that_no_registry_has_is_told_before_anything_is_made(server, tmp_path):
    target = KubernetesTarget(tmp_path / "runs")
    target.check(plan_in(tmp_path, kubernetes={"checkpoint": "pvc/storage"}))
    (told,) = target.notes
    assert told.startswith("no registry has the image fabric-train:cpu: the cluster's nodes must")


@pytest.mark.parametrize(
    ("checkpoint", "named"), [("ephemeral", ""), ("pvc/storage", "pvc/storage/digits")]
)
def test_an_outcome_names_the_claim_of_its_checkpoints_and_no_folder_that_is_gone(
    checkpoint, named, server, start
):
    run = start(kubernetes={"checkpoint": checkpoint})
    run.condition("Complete")
    assert run.end().checkpoint_dir == named


def test_status_tells_that_a_lost_node_is_waited_for_without_shared_checkpoints(server, run, typed):
    put_pod(server, "digits-0-a")
    told = "1 of 2 nodes run; without a claim in kubernetes.checkpoint they go on only if they are"
    assert told in typed("status", run.run_id)[1]
    put_pod(server, "digits-1-a", 1)
    assert told not in typed("status", run.run_id)[1]


def test_a_run_that_is_done_does_not_wait_for_a_pod_that_came_late(server, start):
    run = start()
    run.put("digits-0-a")
    run.put("digits-1-b", 1, phase="Pending", state=CREATING)
    run.said("digits-0-a runs")
    server.log("digits-0-a", ended=True)
    run.put("digits-0-a", phase="Succeeded", state=ended(0, "Completed"))
    run.condition("SuccessCriteriaMet")
    server.until(lambda: ("jobs", "digits") not in server.objects)
    server.remove("pods", "digits-0-a")
    began = time.monotonic()
    assert run.end().cause == "completed"
    assert time.monotonic() - began < 5 + LATE_S
    assert ("pods", "digits-1-b") in server.objects, "it ends by itself, as its job is gone"
