"""Submissions whose answer is lost: the job may run all the same, and the user must hear of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.commands.cli import run_command
from launcher.contract.errors import ExitCode, TargetError
from launcher.runs.folder import LAUNCHER_FILE, RunFolder
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import RUN_ID, ClusterRun, plan_in
from tests.launcher.fake_cluster import FakeCluster, Fault, Object

JOB = ("jobs", "digits")
BY_HAND = "kubectl delete job digits -n team --context fake"


def break_off(server: FakeCluster, do: Callable[[Callable[[], object]], object]) -> None:
    """The connection breaks at each write of a job; ``do`` gets what would make it, before that."""
    put = server.put

    def breaking(plural: str, item: Object, event: str = "MODIFIED") -> Object:
        if plural == "jobs" and event != "DELETED":
            do(lambda: put(plural, item, event))
            raise BrokenPipeError
        return put(plural, item, event)

    server.put = breaking  # type: ignore[method-assign]


def lose_answer(server: FakeCluster, then: Callable[[], None]) -> None:
    """The server makes the job and does not say so; ``then`` happens before the next request."""

    def make(job: Callable[[], object]) -> None:
        job()
        then()

    break_off(server, make)


def be_slow(server: FakeCluster) -> list[Callable[[], object]]:
    """The server gives up the connection first; what is returned makes the job.

    As for a request that takes longer than the launcher waits.
    """
    late = list[Callable[[], object]]()
    break_off(server, late.append)
    return late


def says_that_it_may_run(run: ClusterRun) -> str:
    """What the launcher said; there must be no outcome, so that a later call looks again."""
    error = run.refused()
    assert error.exit_code is ExitCode.TARGET_UNREACHABLE
    assert error.what.startswith(f"STILL RUNNING, perhaps: {RUN_ID}: "), error.what
    assert error.hint == BY_HAND
    assert run.folder.read_outcome() is None
    return error.what


def end_launcher(run: ClusterRun) -> None:
    """As if the launcher had been a process of its own, which has ended by now."""
    file = run.folder.path / LAUNCHER_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "start": -1}))
    assert run.folder.launcher_death()


def show(run: ClusterRun, capfd: pytest.CaptureFixture[str]) -> str:
    """What a later ``launcher status`` says."""
    end_launcher(run)
    capfd.readouterr()
    run_command(("status", RUN_ID))
    printed = capfd.readouterr()
    return printed.out + printed.err


@pytest.mark.parametrize("fault", ["away", "may not read", "may not delete"])
def test_a_job_that_was_made_unseen_and_cannot_be_withdrawn_is_said_to_run_perhaps(
    fault, server, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)

    def break_down() -> None:
        server.away = fault == "away"
        server.denied |= {(fault.removeprefix("may not ").replace("read", "get"), "jobs")}

    lose_answer(server, break_down)
    run = ClusterRun(server, tmp_path, plan_in(tmp_path))
    says_that_it_may_run(run)
    assert JOB in server.objects
    assert ("services", "digits") in server.objects, "what the job needs stays"
    server.away = False
    server.denied.clear()
    assert "running" in show(run, capfd)
    assert run.folder.read_outcome() is None


def test_a_job_that_is_made_after_the_launcher_has_looked_is_said_to_run_perhaps(
    server, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    late = be_slow(server)
    run = ClusterRun(server, tmp_path, plan_in(tmp_path))
    assert "does not answer" in says_that_it_may_run(run)
    for make in late:
        make()
    assert "running" in show(run, capfd)
    assert run_command(("stop", RUN_ID, "--grace", "0")) == 0
    assert JOB not in server.objects


def test_a_job_that_was_made_unseen_and_is_withdrawn_leaves_nothing(server, tmp_path):
    lose_answer(server, lambda: None)
    run = ClusterRun(server, tmp_path, plan_in(tmp_path))
    assert "does not answer" in run.refused().what
    assert not server.objects
    outcome = run.folder.read_outcome()
    assert outcome.cause == "target-unreachable"


def test_a_cluster_that_goes_away_once_the_job_is_made_leaves_a_job_that_is_told(server, tmp_path):
    put = server.put

    def put_and_leave(plural: str, item: Object, event: str = "MODIFIED") -> Object:
        if "ownerReferences" in item["metadata"]:
            server.away = True
            raise BrokenPipeError
        return put(plural, item, event)

    server.put = put_and_leave  # type: ignore[method-assign]
    run = ClusterRun(server, tmp_path, plan_in(tmp_path))
    says_that_it_may_run(run)


@pytest.mark.parametrize(
    ("status", "message", "may_run"),
    [
        (504, "Timeout: request did not complete within requested timeout", True),
        (500, "etcdserver: request timed out", True),
        (500, 'failed calling webhook "validate.kueue": connection refused', False),
        (403, "exceeded quota", False),
    ],
)
def test_only_a_refusal_says_that_there_is_no_job(status, message, may_run, server, tmp_path):
    server.faults.append(Fault("POST", "/jobs?fieldManager", status, message))
    run = ClusterRun(server, tmp_path, plan_in(tmp_path))
    if may_run:
        assert message in says_that_it_may_run(run)
    else:
        assert "STILL RUNNING" not in run.refused().what
        assert run.folder.read_outcome() is not None
        assert not server.objects


def test_ctrl_c_before_the_server_has_answered_says_that_the_job_may_run(
    server, tmp_path, monkeypatch
):
    call = Cluster.create

    def interrupted(self: Cluster, item: Object, *, dry_run: bool = False) -> Object:
        if not dry_run:
            raise KeyboardInterrupt
        return call(self, item, dry_run=dry_run)

    monkeypatch.setattr(Cluster, "create", interrupted)
    plan = plan_in(tmp_path)
    RunFolder(Path(plan.run_dir)).create(plan, "", 1.0)
    with pytest.raises(TargetError) as told:
        KubernetesTarget(tmp_path / "runs").submit(plan)
    assert told.value.what == f"STILL RUNNING, perhaps: {RUN_ID}: interrupted"
    assert told.value.hint == BY_HAND
