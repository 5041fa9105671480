"""Target ``kubernetes`` against a server of the wire format: submitted, followed, changed."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.contract.errors import ExitCode, InputError, TargetError
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.api.cluster import Cluster, ObjectPlace
from launcher.targets.kubernetes.api.kubeconfig import BUSY_TRIES
from launcher.targets.kubernetes.api.refusals import ApiError
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import plan_in
from tests.launcher.fake_cluster import FakeCluster, Fault, ended, pod
from tests.launcher.targets.kubernetes.conftest import labelled, stamp
from tests.waiting import StoppedClock

JOB = ObjectPlace(api_version="batch/v1", kind="Job", name="digits")


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., LaunchPlan]:
    return functools.partial(plan_in, tmp_path)


@pytest.fixture
def target(server: FakeCluster, tmp_path: Path) -> KubernetesTarget:
    return KubernetesTarget(tmp_path / "runs")


# -- where --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "log in again"), (403, "kubectl auth can-i"), (422, "launcher check")],
)
def test_what_the_server_refuses_is_told_with_its_words_and_a_fix(status, hint, server, cluster):
    # A new login is tried once.
    server.faults += [Fault("GET", "/jobs/", status, "jobs is forbidden: no")] * 2
    with pytest.raises(ApiError, match="jobs is forbidden: no") as told:
        cluster.read_object(JOB)
    assert hint in told.value.hint
    assert told.value.exit_code is ExitCode.TARGET_UNREACHABLE


def test_a_server_with_too_many_requests_is_asked_again_whatever_it_is_asked_for(
    server, target, plan, cluster
):
    busy = "too many requests, please try again later"
    for method, path in (("POST", "/jobs"), ("PATCH", "/configmaps/"), ("GET", "/jobs/")):
        server.faults += [Fault(method, path, 429, busy)] * 3
    target.submit(plan())
    assert ("jobs", "digits") in server.objects
    assert server.faults == []
    server.faults += [Fault("GET", "/jobs/", 429, busy)] * 20
    with pytest.raises(ApiError, match=busy):
        cluster.read_object(JOB)
    with cluster.answers_within(0.04), pytest.raises(ApiError, match=busy) as told:
        cluster.read_object(JOB)
    assert "wait a minute, then the same command" in told.value.hint
    assert len(server.faults) == 20 - BUSY_TRIES - 1


# -- submitting ---------------------------------------------------------------------------------


def test_the_server_admits_everything_before_anything_is_made(server, target, plan):
    target.submit(plan())
    writes = [(m, p.split("/")[-2:], q) for m, p, q in server.requests if m in ("POST", "PATCH")]
    dry = [q.get("dryRun") == "All" for _, p, q in writes if p[-1] != "selfsubjectaccessreviews"]
    assert dry == sorted(dry, reverse=True)
    assert sum(dry) == 5, "its four objects, and one of its pods"
    made = {plural for plural, _ in server.objects}
    assert made == {"configmaps", "secrets", "services", "jobs"}
    uid = server.objects["jobs", "digits"]["metadata"]["uid"]
    for (plural, _), item in server.objects.items():
        if plural != "jobs":
            assert item["metadata"]["ownerReferences"][0]["uid"] == uid


def test_a_second_run_of_the_name_is_refused_with_the_commands(server, target, plan):
    first = plan()
    RunFolder(Path(first.run_dir)).create(first, "", 1.0)
    target.submit(first)
    before = dict(server.objects)
    with pytest.raises(InputError, match="Job digits is in namespace team already") as told:
        target.submit(first)
    assert "launcher logs -f digits-0a1b2c to attach" in told.value.hint
    assert "launcher stop digits-0a1b2c to replace it" in told.value.hint
    assert server.objects == before


def test_of_two_submissions_at_the_same_moment_the_later_is_told_where_the_first_is(
    server, target, plan, monkeypatch
):
    create = Cluster.create

    def slow(cluster: Cluster, item: Any, *, dry_run: bool = False) -> Any:
        if not dry_run and ("jobs", "digits") not in server.objects:
            labels = {protocol.LABEL_RUN_ID: "digits-ffffff"}
            first = {**item, "metadata": {**item["metadata"], "labels": labels}}
            create(cluster, first)
        return create(cluster, item, dry_run=dry_run)

    monkeypatch.setattr(Cluster, "create", slow)
    with pytest.raises(InputError, match="Job digits is in namespace team already"):
        target.submit(plan())
    labels = server.objects["jobs", "digits"]["metadata"]["labels"]
    assert labels[protocol.LABEL_RUN_ID] == "digits-ffffff"


@pytest.mark.parametrize(
    ("kind", "word"), [("pytorchjob", "PyTorchJob"), ("jobset", "JobSet"), ("trainjob", "Train")]
)
def test_a_cluster_without_the_operator_names_the_kind_that_needs_none(
    kind, word, server, target, plan
):
    server.kinds -= {"pytorchjobs", "jobsets", "trainjobs"}
    with pytest.raises(TargetError, match=f"this cluster has no {word}") as told:
        target.submit(plan(kind=kind))
    assert "--kind job needs no operator" in told.value.hint
    assert told.value.exit_code is ExitCode.TARGET_UNREACHABLE
    assert not server.objects


def test_a_cluster_without_volcano_is_told_how_to_do_without(server, target, plan):
    server.kinds -= {"podgroups"}
    with pytest.raises(TargetError, match="this cluster has no PodGroup") as told:
        target.submit(plan(kubernetes={"gang": "volcano"}))
    assert told.value.hint == "leave kubernetes.gang out, or install Volcano"


# -- a run from end to end ----------------------------------------------------------------------


def test_a_run_is_followed_through_a_lost_pod_to_its_end(server, start):
    run = start()
    server.put("pods", pod("digits-0-a", labelled(0), phase="Pending", state={}))
    server.until(lambda: "digits-0-a is starting" in run.text)
    server.put("pods", pod("digits-0-a", labelled(0)))
    server.put("pods", pod("digits-1-a", labelled(1)))
    server.log("digits-0-a", (stamp(1), "[0/0] epoch 1"), (stamp(1), "[agent] inside"))
    server.log("digits-1-a", (stamp(1), "[1/1] hello"))
    server.until(lambda: "[1/1] hello" in run.text)
    server.log("digits-1-a", ended=True)
    server.remove("pods", "digits-1-a")
    run.said("node 1 is lost with its pod digits-1-a; the others go on")
    server.put("pods", pod("digits-1-b", labelled(1)))
    server.log("digits-1-b", (stamp(5), "[1/1] back"), ended=True)
    server.log("digits-0-a", (stamp(6), "[0/0] accuracy 0.99"), ended=True)
    server.until(lambda: "[1/1] back" in run.text)
    for name, index in (("digits-0-a", 0), ("digits-1-b", 1)):
        server.put("pods", pod(name, labelled(index), phase="Succeeded", state=ended(0)))
    run.condition("Complete")
    # The controller's garbage collection, which this server has none of.
    server.until(lambda: ("jobs", "digits") not in server.objects)
    for name in ("digits-0-a", "digits-1-b"):
        server.remove("pods", name)
    outcome = run.end()
    assert (outcome.cause, outcome.exit_code) == ("completed", 0)
    assert run.text.count("epoch 1") == 1
    assert "inside" not in run.text
    assert "accuracy 0.99" in run.text
    consoles = {node: path.read_text() for node, path in run.folder.consoles()}
    assert consoles[1, 0] == "[1/1] hello\n"
    assert consoles[1, 1] == "[1/1] back\n"


def test_pods_that_do_not_end_are_told_after_the_limit(server, plan, tmp_path):
    made = plan()
    RunFolder(Path(made.run_dir)).create(made, "", 1.0)
    target = KubernetesTarget(tmp_path / "runs", clock=StoppedClock(5e6))
    target.submit(made)
    # Nobody's: it stays when the job goes, as one does whose machine stands still.
    server.put("pods", pod("digits-0-a", labelled(0)))
    with pytest.raises(TargetError, match="still ending"):
        target.stop(made.run_id, 1)


def test_scaling_a_pytorchjob_patches_its_workers(server, target, plan):
    target.submit(plan(kind="pytorchjob"))
    before = server.objects["pytorchjobs", "digits"]["spec"]
    made = plan(kind="pytorchjob")
    target.scale(RunFolder(Path(made.run_dir)), made, 1)
    after = server.objects["pytorchjobs", "digits"]["spec"]
    assert after["pytorchReplicaSpecs"]["Worker"].pop("replicas") == 1
    assert before["pytorchReplicaSpecs"]["Worker"].pop("replicas") == 2
    assert after == before


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("pytorchjob", ("runPolicy", "suspend")),
        ("jobset", ("suspend",)),
        ("trainjob", ("suspend",)),
    ],
)
def test_every_operators_kind_is_suspended_where_it_reads_that(kind, at, server, target, plan):
    made = plan(kind=kind)
    target.submit(made)
    target.job(made).suspend()
    found = server.objects[f"{kind}s", "digits"]["spec"]
    for key in at:
        found = found[key]
    assert found is True


def test_a_kind_that_keeps_its_size_refuses_to_scale(target, plan):
    made = plan(kind="jobset")
    with pytest.raises(InputError, match="a jobset keeps its size"):
        target.scale(RunFolder(Path(made.run_dir)), made, 1)
