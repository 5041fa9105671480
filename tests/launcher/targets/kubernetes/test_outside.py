"""Runs of a cluster from a machine without their folders: the plan is in the cluster."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.commands.cli import run_command
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.errors import ExitCode
from launcher.follow.loop import write_outcome
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.api.cluster import Cluster
from tests.launcher.cluster_run import INDEX, RUN_ID, plan_in, put_pod
from tests.launcher.fake_cluster import FakeCluster, ended, pod

ROOT = Path(__file__).parents[4]
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    """A command in an empty folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield typed
    assert not any(here.iterdir()), "no second run folder is needed to find out"


def apply_by_kubectl() -> None:
    for item in yaml.safe_load_all((ROOT / "k8s/job-no-operator.yaml").read_text()):
        Cluster().apply(item)


def end_job(server: FakeCluster, kind: str, at: str, **more: str) -> None:
    job = server.objects["jobs", "digits"]
    condition = {"type": kind, "status": "True", "lastTransitionTime": at, **more}
    server.put("jobs", {**job, "status": {"conditions": [condition]}})


# -- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("digits",),
        ("digits-0a",),
        ("digits", "-n", "team"),
        ("digits", "--context", "fake"),
        ("--on", "kubernetes"),
    ],
)
def test_a_run_is_found_by_its_jobs_name_or_its_id(words, submitted, typed):
    code, said = typed("status", *words)
    assert code == 0, said
    assert f"{RUN_ID}: RUNNING on kubernetes" in said
    assert "node 0: running" in said
    assert "node 1: running" in said
    assert "folder:" not in said


def test_a_manifest_that_was_applied_by_kubectl_is_a_run_as_well(server, typed):
    apply_by_kubectl()
    labels = {protocol.LABEL_RUN_ID: "digits-job", INDEX: "0"}
    server.put("pods", pod("digits-job-0-x", labels))
    server.log("digits-job-0-x", ("2026-01-01T00:00:05Z", "[0/0] epoch 1"), ended=True)
    code, said = typed("status", "digits-job")
    assert code == 0, said
    assert "digits-job: RUNNING on kubernetes" in said
    assert typed("logs", "digits-job") == (0, "[0/0] epoch 1\n")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_stop_of_what_kubectl_applied_removes_what_the_job_leaves_also_after_its_deletion(
    is_deleted, server, typed
):
    apply_by_kubectl()
    if is_deleted:
        server.delete("jobs", "digits-job")
        assert server.objects, "the ConfigMap and the Service"
    server.put("configmaps", {"metadata": {"name": "of-others", "labels": {}}})
    code, said = typed("stop", "digits-job", "--grace", "0")
    assert code == 0, said
    assert list(server.objects) == [("configmaps", "of-others")]


def test_clean_removes_what_a_deleted_job_has_left_and_nothing_of_one_that_is_there(server, typed):
    apply_by_kubectl()
    server.put("configmaps", {"metadata": {"name": "of-others", "labels": {}}})
    code, said = typed("clean", "-n", "team", "--older-than", "0s", "--yes")
    assert (code, said.strip()) == (0, "nothing to remove")
    server.delete("jobs", "digits-job")
    code, said = typed("clean", "-n", "team", "--older-than", "0s", "--yes")
    assert code == 0, said
    assert "namespace team" in said
    assert list(server.objects) == [("configmaps", "of-others")]


def test_a_stop_tells_what_it_may_not_remove_and_how_it_goes(server, typed):
    apply_by_kubectl()
    server.denied |= {("delete", "configmaps"), ("delete", "services")}
    code, said = typed("stop", "digits-job", "--grace", "0")
    assert code == 0, said
    left = sorted(f"{plural[:-1]}/{name}" for plural, name in server.objects)
    by_hand = said.partition("for the job is left; to delete it: kubectl -n team delete ")[2]
    assert sorted(by_hand.split()) == left


def test_a_name_that_nobody_has_is_told_with_the_command_that_lists_them(submitted, typed):
    code, said = typed("status", "letters", "-n", "team")
    assert code == ExitCode.BAD_INPUT
    assert "no run 'letters': no runs in " in said
    assert ", nor in namespace team of context fake\n" in said
    fix = said.partition("fix: ")[2].splitlines()[0]
    assert "launcher ps -n team --all" in fix.replace("--namespace", "-n"), fix


def test_a_name_is_looked_for_on_a_cluster_that_is_away_for_seconds_alone(submitted, typed):
    submitted.close()
    code, said = typed("status", "letters")
    assert code == ExitCode.BAD_INPUT
    assert "no run 'letters': no runs in " in said
    assert "; and the cluster of context fake does not answer" in said


def test_jobs_of_one_name_and_two_kinds_are_told_apart_by_their_ids(submitted, typed):
    twin = json.loads(json.dumps(submitted.objects["jobs", "digits"]))
    twin["metadata"] = {"name": "digits", "labels": {protocol.LABEL_RUN_ID: "digits-ffffff"}}
    submitted.put("pytorchjobs", {**twin, "kind": "PyTorchJob", "spec": {}})
    code, said = typed("status", "digits")
    assert code == ExitCode.BAD_INPUT
    assert "digits-0a1b2c (Job digits), digits-ffffff (PyTorchJob digits)" in said


def test_of_jobs_of_one_name_the_one_that_goes_on_is_meant(submitted, typed):
    labels = {protocol.LABEL_RUN_ID: "digits-ffffff"}
    other = {"kind": "PyTorchJob", "metadata": {"name": "digits", "labels": labels}}
    condition = {"type": "Succeeded", "status": "True"}
    submitted.put("pytorchjobs", {**other, "status": {"conditions": [condition]}})
    code, said = typed("status", "digits")
    assert code == 0, said
    assert f"{RUN_ID}: RUNNING on kubernetes" in said


def test_a_run_of_a_launcher_that_kept_no_plan_is_told_of(submitted, typed):
    for (plural, _), item in list(submitted.objects.items()):
        if plural == "configmaps":
            del item["data"][protocol.NODE_TASK_FILE]
    code, said = typed("status", "digits")
    assert code == ExitCode.BAD_INPUT
    assert "the cluster keeps no plan of digits-0a1b2c" in said
    assert "kubectl describe job digits -n team" in said


# -- what is done with it -------------------------------------------------------------------------


def test_a_run_of_others_is_scaled_and_its_size_is_told(submitted, typed):
    code, said = typed("scale", "digits", "1")
    assert code == 0, said
    assert submitted.objects["jobs", "digits"]["spec"]["parallelism"] == 1
    submitted.remove("pods", "digits-1-a")
    assert "node 1" not in typed("status", "digits")[1]
    assert "5 nodes asked for" in typed("scale", "digits", "5")[1]


def test_a_run_of_others_is_stopped(submitted, typed):
    def collect() -> None:
        submitted.until(lambda: ("jobs", "digits") not in submitted.objects)
        for index in range(2):
            submitted.log(f"digits-{index}-a", ended=True)
            submitted.remove("pods", f"digits-{index}-a")

    gone = threading.Thread(target=collect, daemon=True)
    gone.start()
    code, said = typed("stop", "digits")
    assert code == 0, said
    assert "digits-0a1b2c: stopped, stop-requested; nothing of it runs any more" in said
    assert ("configmaps", "digits-agent") not in submitted.objects


def outcome_of(index: int, **fields: Any) -> str:
    """What an agent leaves in its pod's status."""
    told = {
        "schema": 2, "node_index": index, "incarnation": 0, "reason": "training-failed",
        "exit_code": 1, "detail": "", "attempts": 2, "restarts": {"exit": 1},
        "started_at": 1767225605.0, "finished_at": 1767225640.0, "first": None, "collateral": [],
    }  # fmt: skip
    return json.dumps({**told, **fields})


FIRST = {
    "attempt": 1, "rank": 1, "local_rank": 0, "exit_code": 1, "failed_at": 1767225638.0,
    "cause": "exit", "exception": "ValueError: no data", "log": "nodes/1/0/attempt-1/rank-1",
}  # fmt: skip


@pytest.fixture
def failed(submitted: FakeCluster) -> FakeCluster:
    """The run has failed: node 1's worker first, after node 1 had been placed late."""
    start, end = "2026-01-01T00:00:05Z", "2026-01-01T00:00:40Z"
    times = {"startedAt": start, "finishedAt": end}
    for index, message in enumerate((outcome_of(0), outcome_of(1, first=FIRST))):
        name = f"digits-{index}-a"
        submitted.log(name, ("2026-01-01T00:00:38Z", f"[{index}/{index}] Traceback"), ended=True)
        state = ended(1, message=message, **times)
        put_pod(submitted, name, index, made="02", phase="Failed", state=state, uid=f"uid-{index}")
    job = submitted.objects["jobs", "digits"]
    job["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    end_job(submitted, "Failed", "2026-01-01T00:00:41Z", reason="PodFailurePolicy", message="x")
    return submitted


def test_a_report_without_a_folder_is_made_of_what_the_pods_say(failed, typed):
    code, said = typed("report", "digits")
    assert code == 0, said
    lines = [line.strip() for line in said.splitlines()]
    assert lines[0].startswith(f"{RUN_ID}: FAILED on kubernetes (training-failed")
    assert "exit code 1; 41.0 s" in lines[0]
    assert "first failure in attempt 1: rank 1 on node 1: ValueError: no data" in lines
    assert "| Traceback" in lines
    assert "log: python -m launcher logs digits-0a1b2c --rank 1" in lines
    assert "restarts     exit 2 (over all nodes)" in lines
    timeline = [line for line in lines if line[:1].isdigit() and "  " in line]
    assert [line.partition("  ")[2] for line in timeline] == [
        "0.0  pod digits-0-a made",
        "1.0  pod digits-1-a made",
        "0.0  container of digits-0-a started",
        "1.0  container of digits-1-a started",
        "1.0  rank 1 ended: ValueError: no data",
        "0.0  container of digits-0-a ended: exit code 1 (training-failed)",
        "1.0  container of digits-1-a ended: exit code 1 (training-failed)",
    ]
    assert "folder" not in said


def test_looking_at_a_run_of_others_that_is_done_removes_nothing_of_it(submitted, typed):
    for index in range(2):
        submitted.log(f"digits-{index}-a", ended=True)
        put_pod(
            submitted, f"digits-{index}-a", index, phase="Succeeded", state=ended(0, "Completed")
        )
    created = submitted.objects["jobs", "digits"]["metadata"]["creationTimestamp"]
    end_job(submitted, "Complete", f"{created[:14]}30:00Z")
    held = set(submitted.objects)
    code, said = typed("status", "digits")
    assert code == 0, said
    assert f"{RUN_ID}: SUCCEEDED on kubernetes" in said
    seconds = 1800 - int(created[17:19])
    assert f"exit code 0; {seconds}.0 s)" in said, "the job's own time, not that of now"
    assert set(submitted.objects) == held
    assert not [method for method, _, _ in submitted.requests if method == "DELETE"]


def test_a_run_that_has_ended_here_does_not_hide_the_one_that_goes_on_there_and_has_the_name(
    submitted, tmp_path, capfd
):
    plan = replace(plan_in(tmp_path), run_id="digits-99ffff", run_dir=f"{tmp_path}/r/digits-99ffff")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 2.0)
    assert run_command(("status", "digits", "--runs", str(run.path.parent))) == 0
    assert f"{RUN_ID}: RUNNING on kubernetes" in capfd.readouterr().out
    assert run_command(("status", "digits-9", "--runs", str(run.path.parent))) == 0
    assert "digits-99ffff: SUCCEEDED" in capfd.readouterr().out


@pytest.mark.parametrize("words", [(), ("--follow",)])
def test_logs_of_an_ended_run_that_this_user_may_not_read_are_an_error(submitted, typed, words):
    end_job(submitted, "Complete", "2026-01-01T00:01:00Z")
    submitted.denied.add(("get", "pods/log"))
    code, said = typed("logs", "digits", *words)
    assert code == ExitCode.TARGET_UNREACHABLE
    assert 'cannot get resource "pods/log"' in said
