"""What real clusters do to a run, as its user sees it: endings, logs, events, starts that fail."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.api.listing import read_state
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import ExitCode, TargetError
from launcher.targets.kubernetes import follow as follow_kubernetes
from launcher.targets.kubernetes.api import cluster as cluster_api
from launcher.targets.kubernetes.api import kubeconfig
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.api.kubeconfig import open_client
from launcher.targets.kubernetes.api.refusals import ApiError
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import (
    INDEX,
    PLAIN,
    REPLICA,
    ROLE,
    RUN_ID,
    ClusterRun,
    agents_outcome,
    plan_in,
    put_pod,
    started,
)
from tests.launcher.fake_cluster import FakeCluster, Fault, Object, ended, pod
from tests.launcher.targets.kubernetes.conftest import submit_run

ROOT = Path(__file__).parents[4]
NO_PYTHON = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    'unable to start container process: exec: "python3": executable file not found in $PATH'
)
Start = Callable[..., ClusterRun]
OF_THE_HOST = PLAIN.replace("ephemeral", "ephemeral, host_network: true")


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.5Z"


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def begin(start: Start, **fields: Any) -> ClusterRun:
    """A run whose first pod runs."""
    run = start(**fields)
    run.put("digits-0-a")
    run.said("digits-0-a runs")
    return run


# -- a login that ends -----------------------------------------------------------------------------


@pytest.fixture
def _logs_in_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "RENEW_S", 0.1)


@pytest.mark.usefixtures("_logs_in_soon")
def test_a_run_whose_login_ends_is_followed_on_once_a_person_has_logged_in_again(server, start):
    run = begin(start)
    server.log("digits-0-a", (at(1), "epoch 1"))
    server.until(lambda: server.asked("GET", "/log"))
    server.token = "another"
    text = run.said("trying again")
    assert "Unauthorized; trying again; log in again (kubectl get pods" in text
    server.log("digits-0-a", (at(2), "epoch 2"), ended=True)
    run.put("digits-0-a", phase="Succeeded", state=ended(0, "Completed"))
    run.condition("Complete")
    server.write_kubeconfig(Path(os.environ["KUBECONFIG"]))
    server.until(lambda: ("jobs", "digits") not in server.objects)
    server.remove("pods", "digits-0-a")
    assert run.end().cause == "completed"
    assert "the cluster answers again" in run.text
    assert "epoch 2" in run.folder.console(0, 0).read_text()


def test_a_login_command_is_not_started_at_each_request(server, monkeypatch):
    cluster, opened = Cluster(), list[str]()
    cluster.read_version()

    def open_anew(*given: Any, **named: Any) -> Any:
        opened.append("anew")
        return open_client(*given, **named)

    monkeypatch.setattr(cluster_api, "open_client", open_anew)
    server.token = "another"
    for _ in range(4):
        with pytest.raises(ApiError, match="Unauthorized"):
            cluster.read_version()
    assert opened == ["anew"]


def test_a_cluster_that_takes_no_watch_is_not_said_to_answer_again(server, start):
    run = begin(start)
    server.away = True
    run.said("trying again")
    asked = len(server.requests)
    server.until(lambda: len(server.requests) > asked + 5)
    assert "the cluster answers again" not in run.text
    server.away = False
    run.said("the cluster answers again")


# -- a job that cannot be ended -------------------------------------------------------------------


def test_a_run_whose_cluster_is_away_is_not_said_to_be_stopped(server, start, monkeypatch):
    monkeypatch.setattr(follow_kubernetes, "LEAST_TRIES_S", 1.0)
    run = begin(start, stop_grace_s=1)
    server.away = True
    run.follower.stop_reason = Cause.INTERRUPTED
    error = run.refused()
    assert error.exit_code is ExitCode.TARGET_UNREACHABLE
    assert error.what.startswith(f"STILL RUNNING: {RUN_ID}: ")
    assert error.hint == "kubectl delete job digits -n team --context fake"
    assert run.folder.read_outcome() is None
    assert "answers again" not in run.text
    assert ("jobs", "digits") in server.objects


def test_a_cluster_that_comes_back_within_the_grace_still_ends_the_job(server, start):
    run = start(stop_grace_s=30)
    server.away = True
    run.follower.stop_reason = Cause.INTERRUPTED
    run.said("trying again")
    server.away = False
    assert run.end().exit_code == ExitCode.INTERRUPTED
    assert ("jobs", "digits") not in server.objects
    assert not [path for _, path, _ in server.requests if "persistentvolumeclaims" in path]


def test_a_run_that_this_user_may_not_delete_runs_on_and_is_said_to(server, start):
    run = start()
    server.denied.add(("delete", "jobs"))
    run.follower.stop_reason = Cause.INTERRUPTED
    error = run.refused()
    assert 'cannot delete resource "jobs"' in error.what
    assert error.hint.startswith("kubectl delete job digits")
    assert run.folder.read_outcome() is None


def test_a_job_that_is_done_and_may_not_be_deleted_is_done_with_the_command_for_its_object(
    server, start
):
    run = start()
    server.denied.add(("delete", "jobs"))
    run.put("digits-0-a", phase="Succeeded", state=ended(0, "Completed"))
    run.condition("Complete")
    assert run.end().cause == "completed"
    assert "the job has ended, but its object is left: kubectl delete job digits" in run.text


def test_a_run_that_shall_be_kept_and_cannot_be_suspended_is_said_to_run(server, start):
    run = start(kind="pytorchjob")
    server.denied.add(("patch", "pytorchjobs"))
    (run.folder.path / "stop-run").write_text("keep\n")
    error = run.refused()
    assert error.hint == (
        "kubectl patch pytorchjob digits -n team --context fake --type merge -p "
        """'{"spec": {"runPolicy": {"suspend": true}}}'"""
    )


def test_ctrl_c_twice_with_the_cluster_away_says_that_the_job_runs(server, tmp_path):
    process = started(tmp_path, f"stop_grace_s: 60\n{PLAIN}")
    server.until(lambda: server.asked("GET", "/pods"))
    server.away = True
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = ""
    while "trying again" not in line:
        line = process.stderr.readline()
        assert line, "it ended by itself"
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == ExitCode.TARGET_UNREACHABLE, text
    assert "STILL RUNNING" in text
    assert "fix: kubectl delete job digits -n team" in text
    assert "nothing was left running" not in text


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("fault", ["away", "denied"])
def test_a_stop_by_another_process_that_cannot_end_the_job_says_that_it_runs(
    fault, keep, server, run, typed
):
    put_pod(server, "digits-0-a")
    server.log("digits-0-a", ended=True)
    server.away = fault == "away"
    server.denied |= {("delete", "jobs"), ("patch", "jobs")}
    code, text = typed("stop", run.run_id, *(["--keep"] if keep else []))
    assert code == ExitCode.TARGET_UNREACHABLE
    assert f"error: STILL RUNNING: {RUN_ID}: the cluster of context fake " in text
    verb = "patch" if keep else "delete"
    assert f"fix: kubectl {verb} job digits -n team --context fake" in text
    assert run.read_outcome() is None


def test_a_job_that_has_ended_and_cannot_be_deleted_by_another_process_is_not_said_to_run(
    server, run, typed
):
    server.denied.add(("delete", "jobs"))
    job = server.objects["jobs", "digits"]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    code, text = typed("stop", run.run_id)
    assert code == ExitCode.TARGET_UNREACHABLE
    assert "STILL RUNNING" not in text
    assert "fix: kubectl delete job digits -n team --context fake" in text


def test_a_job_that_has_failed_is_kept_as_it_is_and_no_command_resumes_it(server, run, typed):
    job = server.objects["jobs", "digits"]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    code, text = typed("stop", run.run_id, "--keep")
    assert code == 0, text
    assert f"{run.run_id}: failed, training-failed; it had ended before, and is not" in text
    assert "kubectl patch" not in text
    assert not server.asked("PATCH", "/jobs/digits")
    assert ("jobs", "digits") in server.objects


def test_who_may_not_see_the_pods_may_end_the_job(server, run, typed):
    server.denied |= {("list", "pods"), ("watch", "pods")}
    typed("stop", run.run_id, "--grace", "0")
    assert ("jobs", "digits") not in server.objects


# -- logs -----------------------------------------------------------------------------------------


def test_what_the_server_says_in_the_place_of_a_log_is_no_line_of_it_and_kills_nobody(
    server, start, monkeypatch
):
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(str(args.exc_value)))
    run = start()
    server.lost_logs.add("digits-0-a")
    run.put("digits-0-a")
    run.put("digits-1-a", 1)
    server.log("digits-1-a", (at(1), "[1/1] hello"))
    run.said("[1/1] hello")
    server.until(lambda: len(server.asked("GET", "/pods/digits-0-a/log")) >= 2)
    server.lost_logs.clear()
    server.log("digits-0-a", (at(2), "[0/0] back"))
    run.said("back")
    # Evicted: its container is gone before its log was read to the end.
    server.lost_logs.add("digits-0-a")
    server.log("digits-0-a", ended=True)
    asked = len(server.asked("GET", "/pods/digits-0-a/log"))
    run.put("digits-0-a", phase="Failed", state={}, reason="Evicted", message="low on memory")
    server.until(lambda: len(server.asked("GET", "/pods/digits-0-a/log")) > asked)
    server.log("digits-1-a", (at(3), "[1/1] goes on"))
    run.said("[1/1] goes on")
    assert died == []
    lost = "the rest of the log of digits-0-a is lost: unable to retrieve container logs"
    assert run.said(lost).count("unable to retrieve") == 1
    assert run.folder.console(0, 0).read_text() == "[0/0] back\n"


def test_a_log_that_was_read_to_its_end_is_not_lost_when_its_container_is_forgotten(server, start):
    run = start()
    run.put("digits-0-a")
    server.log("digits-0-a", (at(1), "[0/0] the last line"))
    run.said("the last line")
    asked = len(server.asked("GET", "/pods/digits-0-a/log"))
    # The container ends; it is removed, and its log with it, before the log is asked for again.
    server.after_log = lambda: server.lost_logs.add("digits-0-a")
    run.put("digits-0-a", phase="Succeeded", state=ended(0, "Completed"))
    server.log("digits-0-a", ended=True)
    server.until(lambda: len(server.asked("GET", "/pods/digits-0-a/log")) > asked)
    run.condition("Complete")
    server.until(lambda: ("jobs", "digits") not in server.objects)
    server.remove("pods", "digits-0-a")
    assert run.end().cause == "completed"
    assert "is lost" not in run.text


def test_nonsense_in_a_watch_does_not_end_the_watching(server, start):
    run = start()
    server.put("pods", {"metadata": {"name": "odd", "labels": {"launcher.run-id": RUN_ID,
        "batch.kubernetes.io/job-completion-index": "first"}}})  # fmt: skip
    run.said("makes no sense")
    server.remove("pods", "odd")
    run.put("digits-0-a")
    run.said("digits-0-a runs")


def test_who_may_not_read_logs_is_told_once_and_the_run_goes_on(server, start):
    run = start()
    server.denied.add(("get", "pods/log"))
    run.put("digits-0-a")
    run.put("digits-1-a", 1)
    said = run.said("no output is shown: ")
    assert 'cannot get resource "pods/log"' in said
    server.until(lambda: len(server.asked("GET", "/log")) > 6)
    assert run.text.count("no output is shown") == 1
    assert run.outcome is None


def test_logs_that_this_user_may_not_read_are_an_error(server, run, typed):
    server.denied.add(("get", "pods/log"))
    put_pod(server, "digits-0-a")
    code, text = typed("logs", run.run_id, "--follow")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert text.count('cannot get resource "pods/log"') == 1
    assert "kubectl auth can-i --list -n team" in text


# -- no pods --------------------------------------------------------------------------------------


def quota_event(server: FakeCluster, pod: str = "digits-0-x7k2p", kind: str = "Job") -> None:
    server.event(
        kind, "digits", "FailedCreate",
        f'Error creating: pods "{pod}" is forbidden: exceeded quota: small, requested: pods=1, '
        "used: pods=0, limited: pods=0",
    )  # fmt: skip


def test_a_quota_that_lets_no_pod_be_made_is_told_by_the_run_and_by_status(server, start, typed):
    quota: Object = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    server.put("resourcequotas", quota)
    run = start()
    assert "a pod would not be admitted now: " in run.text
    quota_event(server)
    quota_event(server, "digits-1-aaaaa")
    said = run.said("Job digits: FailedCreate: Error creating: pods ")
    assert "exceeded quota: small" in said
    assert "kubectl describe quota -n team" in said
    before = len(server.asked("GET", "/events"))
    server.until(lambda: len(server.asked("GET", "/events")) > before + 1)
    assert run.text.count("FailedCreate") == 1, "as often as it is another one"
    told = typed("status", RUN_ID)[1]
    assert "node 0: missing; Job digits: FailedCreate" in told


def test_what_the_jobs_conditions_say_is_told_and_events_of_an_earlier_job_are_not(server, start):
    old = server.event("Job", "digits", "FailedCreate", "of yesterday")
    old["lastTimestamp"] = old["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    run = start()
    run.condition("Suspended", message="Job suspended", reason="JobSuspended")
    run.said("Job digits: Suspended: Job suspended")
    assert "of yesterday" not in run.text


def test_why_tells_of_a_cluster_that_refuses_what_it_could_not_see(server, start, typed):
    begin(start)
    server.denied.add(("list", "pods"))
    told = typed("why", RUN_ID)[1]
    assert "not read: the cluster of context fake cannot get Pod: pods is forbidden: " in told


def test_a_job_that_is_deleted_once_all_its_pods_have_ended_well_has_completed(server, start):
    run = begin(start)
    for index in range(2):
        run.put(f"digits-{index}-a", index, phase="Succeeded", state=ended(0, "Completed"))
        server.log(f"digits-{index}-a", ended=True)
    run.said("digits-1-a ended with 0")
    server.delete("jobs", "digits")
    for index in range(2):
        server.remove("pods", f"digits-{index}-a")
    assert run.end().cause == "completed"


@pytest.mark.parametrize("queue", ["", "team-queue"])
def test_a_job_that_somebody_suspends_is_told_by_each_command_with_the_way_to_go_on(
    queue, server, start, typed
):
    run = begin(start)
    job = server.objects["jobs", "digits"]
    job["spec"]["suspend"] = True
    if queue:
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue
    run.condition("Suspended", message="Job suspended", reason="JobSuspended")
    server.remove("pods", "digits-0-a")
    way = "kubectl patch job digits -n team --context fake --type merge -p "
    way = "kubectl get workloads -n team tells" if queue else f"resume it: {way}"
    run.said(f"Job digits: Suspended: Job suspended; {way}")
    said = typed("status", RUN_ID)[1]
    assert "digits-0a1b2c: SUSPENDED on kubernetes" in said
    assert f"Job suspended; {way}" in said
    assert " suspended " in typed("ps")[1]
    told = typed("why", RUN_ID)[1]
    assert "its job is suspended, and has no nodes; " in told
    assert "launcher status digits-0a1b2c tells how it goes on" in told
    job["spec"]["suspend"] = False
    server.put("jobs", job)
    assert "RUNNING" in typed("status", RUN_ID)[1]


def test_a_job_that_no_controller_takes_up_is_told(server, start):
    run = start(kind="pytorchjob")
    told = "no controller has taken up pytorchjob digits: is Kubeflow's training operator running?"
    assert "kubectl describe pytorchjob digits -n team" in run.said(told)


@pytest.mark.parametrize(
    ("kind", "controller"),
    [
        ("job", "kube-controller-manager"),
        ("pytorchjob", "Kubeflow's training operator"),
        ("jobset", "JobSet"),
        ("trainjob", "Kubeflow Trainer"),
    ],
)
def test_status_tells_at_once_of_a_job_that_no_controller_takes_up(
    kind, controller, server, tmp_path, typed
):
    submit_run(tmp_path, kind=kind)
    code, said = typed("status", RUN_ID)
    assert code == 0, said
    told = f"no controller has taken up {kind} digits: is {controller} running?"
    assert f"node 0: missing; {told}" in said


def test_of_a_job_that_waits_in_a_queue_of_volcano_its_pod_group_is_told(server, tmp_path, typed):
    queued = {"gang": "volcano", "queue": "research"}
    submit_run(tmp_path, kind="pytorchjob", kubernetes=queued)
    job = server.objects["pytorchjobs", "digits"]
    server.put("pytorchjobs", {**job, "status": {"conditions": []}, "other": 1})
    group = {"metadata": {"name": "digits"}, "spec": {"queue": "research"}}
    server.put("podgroups", {**group, "status": {"phase": "Pending"}})
    said = typed("status", RUN_ID)[1]
    assert "Volcano holds PodGroup digits in queue research: Pending; kubectl describe" in said


def test_a_pod_that_no_scheduler_looks_at_is_told_with_the_scheduler_that_it_waits_for(
    server, start, typed
):
    run = start()
    for index in range(2):
        item = pod(f"digits-{index}-a", {protocol.LABEL_RUN_ID: RUN_ID, INDEX: str(index)})
        item["status"] = {"phase": "Pending"}
        item["spec"]["schedulerName"] = "volcano"
        server.put("pods", item)
    told = "digits-0-a: its scheduler volcano has not looked at it: does it run?"
    run.said(told)
    assert f"node 0: pending; {told}" in typed("status", RUN_ID)[1]


def test_who_may_not_list_events_is_told_so(server, start):
    server.denied.add(("list", "events"))
    run = start()
    run.said("events may say why, but you may not list them")


def test_pod_security_refuses_the_job_before_anything_is_made_and_the_warning_is_shown(
    server, tmp_path, typed
):
    server.level = "restricted"
    (tmp_path / "job.yaml").write_text(OF_THE_HOST)
    code, text = typed("run", "job.yaml", "--on", "kubernetes")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert "not admissible under Pod Security restricted: kubernetes.host_network" in text
    assert 'would violate PodSecurity "restricted:latest": host namespaces' in text
    assert 'violates PodSecurity "restricted:latest"' in text
    assert not server.objects


def test_a_user_who_may_make_no_pods_is_not_kept_from_making_a_job(server, start):
    server.denied.add(("create", "pods"))
    run = start()
    assert ("jobs", "digits") in server.objects
    assert "would not be admitted" not in run.text


@pytest.mark.parametrize(
    ("status", "message", "is_final"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', False),
        (400, 'admission webhook "policy" does not support dry run', False),
        (500, "Internal error occurred", False),
        (403, 'pods "x" is forbidden: error looking up service account team/trainer', True),
    ],
)
def test_of_a_pod_that_is_refused_only_what_is_final_keeps_the_job_from_being_made(
    status, message, is_final, server, tmp_path
):
    server.faults.append(Fault("POST", "/pods?dryRun", status, message))
    target = KubernetesTarget(tmp_path / "runs")
    if is_final:
        with pytest.raises(TargetError, match="forbidden"):
            target.submit(plan_in(tmp_path))
        assert not server.objects
    else:
        target.submit(plan_in(tmp_path))
        assert any(message in note for note in target.notes)


# -- what can never become right ------------------------------------------------------------------


def test_a_second_equal_failure_to_start_ends_the_run(server, start):
    run = start(kind="pytorchjob")
    state = ended(128, "StartError", message=NO_PYTHON)
    run.put("digits-worker-0", phase="Failed", state=state, uid="first")
    run.said("digits-worker-0: CreateContainerError")
    server.remove("pods", "digits-worker-0")
    run.put("digits-worker-0", phase="Failed", state=state, uid="second")
    run.said("ending the run: digits-worker-0: StartError, 2 times: ")
    server.remove("pods", "digits-worker-0")
    outcome = run.end()
    assert (outcome.cause, outcome.exit_code) == ("bad-input", 2)
    assert "executable file not found" in outcome.detail
    assert not server.objects


def test_a_job_whose_controller_sees_the_failure_to_start_first_says_it_and_is_kept(server, start):
    run = start()
    run.put("digits-0-a", phase="Failed", state=ended(128, "StartError", message=NO_PYTHON))
    run.condition("Failed", reason="PodFailurePolicy", message="exit code 128")
    outcome = run.end()
    assert (outcome.cause, outcome.exit_code) == ("bad-input", 2)
    assert "executable file not found" in outcome.detail
    assert "the image lacks python3" in outcome.detail
    assert f"launcher stop {RUN_ID} removes it" in run.text
    assert ("jobs", "digits") in server.objects


def test_what_never_becomes_right_ends_after_the_limit_which_is_told_at_its_start(server, start):
    run = start(kubernetes={"start_limit_s": 1})
    run.put("digits-0-a", phase="Pending", state=waiting("ImagePullBackOff", "no such image"))
    run.said("; the run ends if this lasts 1 s (kubernetes.start_limit_s)")
    run.said("ending the run: digits-0-a: ")
    server.remove("pods", "digits-0-a")
    outcome = run.end()
    assert (outcome.cause, outcome.exit_code) == ("bad-input", 2)
    assert outcome.detail.endswith("it lasted 1 s (kubernetes.start_limit_s)")
    assert not server.objects


SANDBOXED = (
    'Error creating: pods "digits-worker-0" is forbidden: violates PodSecurity "restricted": '
    'allowPrivilegeEscalation != false (container "init-pytorch" must set it)'
)


def test_a_pod_that_is_refused_for_good_ends_the_run_after_the_limit_though_node_0_waits_for_it(
    server, start
):
    limit = {"start_limit_s": 1}
    run = start(kind="pytorchjob", nnodes=2, rdzv={"backend": "static"}, kubernetes=limit)
    # The operator adds an init container to the worker, which the namespace does not admit.
    server.event("PyTorchJob", "digits", "FailedCreatePod", SANDBOXED)
    labels = {protocol.LABEL_RUN_ID: RUN_ID, ROLE: "master", REPLICA: "0"}
    server.put("pods", pod("digits-master-0", labels))
    server.log("digits-master-0", ended=True)
    said = run.said("; the run ends if this lasts 1 s (kubernetes.start_limit_s)")
    assert "violates PodSecurity" in said
    run.said("ending the run: PyTorchJob digits: FailedCreatePod: ")
    server.remove("pods", "digits-master-0")
    outcome = run.end()
    assert (outcome.cause, outcome.exit_code) == ("bad-input", 2)
    assert "kubectl describe namespace team" in outcome.detail
    assert server.asked("DELETE", "/pytorchjobs/digits")


def test_why_on_a_missing_secret_says_to_create_it(server, start, typed):
    run = start(kubernetes={"start_limit_s": 1})
    missing = waiting("CreateContainerConfigError", 'secret "keys" not found')
    run.put("digits-0-a", phase="Pending", state=missing)
    run.said("ending the run: digits-0-a: ")
    server.remove("pods", "digits-0-a")
    run.end()
    said = typed("why", RUN_ID)[1]
    assert 'digits-0-a waits: CreateContainerConfigError: secret "keys" not found' in said
    assert "fix: create the Secret" in said


# -- what ended runs leave ------------------------------------------------------------------------


def test_pods_that_a_controller_deletes_leave_their_outcome_and_a_timeline(server, start, typed):
    run = start()
    placed = [{"type": "PodScheduled", "status": "True",
               "lastTransitionTime": "2026-01-01T00:00:02Z"}]  # fmt: skip
    run.put("digits-0-a", made="01", conditions=placed)
    server.log(
        "digits-0-a", (at(3), "[agent] restart (exit): rank 0: ValueError: no data"),
        (at(4), "[0/0] epoch 1"),
    )  # fmt: skip
    run.said("epoch 1")
    message = agents_outcome(at=100.0, message="ValueError: no data")
    state = ended(1, message=message, startedAt="2026-01-01T00:00:02Z",
                  finishedAt="2026-01-01T00:00:09Z")  # fmt: skip
    server.log("digits-0-a", ended=True)
    # Between two looks of the launcher: the watch alone has seen it.
    run.put("digits-0-a", made="01", phase="Failed", state=state, conditions=placed)
    server.remove("pods", "digits-0-a")
    run.condition("Failed", reason="BackoffLimitExceeded", message="x")
    outcome = run.end()
    assert outcome.cause == "restarts-exhausted"
    assert outcome.detail == "digits-0-a: rank 0: ValueError: no data"
    code, report = typed("report", RUN_ID)
    assert code == 0
    assert "0.0: 4 attempts, restarts-exhausted, exit code 1" in report
    for line in (
        "0.0  pod digits-0-a made",
        "0.0  pod digits-0-a placed on a node",
        "0.0  container of digits-0-a started",
        "0.0  agent: restart (exit): rank 0: ValueError: no data",
        "0.0  container of digits-0-a ended: exit code 1",
    ):
        assert report.count(line) == 1, report


def test_a_container_that_starts_again_in_its_place_leaves_its_outcome(server, start, typed):
    run = start()
    run.put("digits-0-a", made="01")
    server.log("digits-0-a", (at(1), "[0/0] one"), ended=True)
    run.said("one")
    message = agents_outcome(at=100.0, message="ValueError: no data")
    last = ended(1, message=message, startedAt="2026-01-01T00:00:02Z",
                 finishedAt="2026-01-01T00:00:09Z")  # fmt: skip
    state = {"running": {"startedAt": "2026-01-01T00:00:11Z"}}
    run.put("digits-0-a", made="01", restarts=1, last=last, state=state)
    server.log("digits-0-a", (at(2), "[0/0] two"), restart=1)
    run.said("two")
    server.until(lambda: (run.folder.node_dir(0, 0) / "outcome.json").is_file())
    report = typed("report", RUN_ID)[1]
    assert "0.0: 4 attempts, restarts-exhausted, exit code 1" in report
    # Each has its own times, and none those of its pod.
    for place, text in (
        ("0.0", "pod digits-0-a made"),
        ("0.0", "container of digits-0-a started"),
        ("0.0", "container of digits-0-a ended: exit code 1"),
        ("0.1", "container of digits-0-a started"),
    ):
        assert report.count(f"{place}  {text}") == 1, report


def test_what_is_saved_is_not_told_twice_by_the_next_process(server, run, typed):
    put_pod(server, "digits-0-a")
    server.log("digits-0-a", (at(1), "[agent] restart (exit)"))
    for _ in range(2):
        assert typed("logs", run.run_id)[0] == 0
    report = typed("report", run.run_id)[1]
    assert report.count("pod digits-0-a made") == 1
    assert report.count("agent: restart (exit)") == 1


def test_a_report_tells_of_a_pod_that_could_not_be_prepared(server, run, typed):
    prepares = [{"name": "code", "state": ended(128, "StartError")}]
    waits = {"waiting": {"reason": "PodInitializing"}}
    put_pod(server, "digits-0-a", phase="Failed", state=waits, initContainerStatuses=prepares)
    assert typed("logs", run.run_id)[0] == 0
    report = typed("report", run.run_id)[1]
    assert report.count("pod digits-0-a could not be prepared: StartError") == 1


def test_a_deleted_job_found_by_a_later_call_was_stopped(server, run):
    server.delete("jobs", "digits")
    state, outcome = read_state(run, run.read_plan())
    assert (state, outcome.exit_code) == ("stopped", 143)


# -- verification ---------------------------------------------------------------------------------


def test_a_context_without_verification_is_told_once_and_by_no_warning_of_a_library(
    tls_server, tmp_path
):
    tls_server.faults.append(Fault("POST", "/jobs?dryRun", 422, "no"))
    process = started(tmp_path, PLAIN)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.TARGET_UNREACHABLE
    assert "InsecureRequestWarning" not in errors
    assert errors.count("skips TLS verification") == 1


@pytest.fixture
def tls_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    fake = FakeCluster(certificate=certificate, key=key)
    monkeypatch.setenv("KUBECONFIG", str(fake.write_kubeconfig(tmp_path / "kubeconfig")))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    fake.close()


def test_a_size_that_the_cluster_refuses_does_not_end_the_following(server, start):
    run = start()
    server.denied.add(("patch", "jobs"))
    (run.folder.path / "scale-request").write_text('{"nodes": 1}')
    run.said("not scaled: ")
    run.put("digits-0-a")
    run.said("digits-0-a runs")
