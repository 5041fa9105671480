"""Which cluster and namespace a command goes to: contexts, options and a pod's own account."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import run_command
from launcher.errors import ExitCode
from launcher.jobfile import read_job
from launcher.kubernetes_plan import plan_kubernetes
from launcher.runs import RunFolder
from launcher.targets import kubernetes_api
from launcher.targets.kubernetes import KubernetesTarget
from launcher.targets.kubernetes_api import IN_CLUSTER, Cluster
from tests.launcher.fake_cluster import FakeCluster

pytest.importorskip("kubernetes", reason="pip install fabric-train[kubernetes]")

JOB_FILE = """\
name: digits
command: [-m, train]
nnodes: "1:2"
nproc_per_node: 1
max_restarts: 3
kubernetes: {kind: job, checkpoint: ephemeral}
"""
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """A command in a folder with a job file: its exit code, and all that it said."""
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, str]:
        code = run_command(argv)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def paths(server: FakeCluster) -> set[str]:
    """The namespaces that were asked in."""
    parts = [path.split("/") for _, path, _ in server.requests]
    return {words[words.index("namespaces") + 1] for words in parts if "namespaces" in words}


# -- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "namespace"),
    [
        ((), "team"),
        (("--context", "other"), "others"),
        (("--namespace", "mine"), "mine"),
        (("-n", "mine", "--context", "other"), "mine"),
        (("--set", "kubernetes.namespace=theirs"), "theirs"),
    ],
)
def test_a_run_goes_to_the_context_and_namespace_that_kubectl_would_go_to(
    options: tuple[str, ...], namespace: str, server: FakeCluster, launcher: Command
) -> None:
    server.namespaces = set()
    code, said = launcher("run", "job.yaml", "--on", "kubernetes", *options)
    assert code == ExitCode.TARGET_UNREACHABLE, said
    assert paths(server) == {namespace}
    assert f"fix: kubectl create namespace {namespace}" in said


def test_the_kind_of_the_command_line_wins(server: FakeCluster, launcher: Command) -> None:
    server.kinds -= {"pytorchjobs"}
    code, said = launcher("run", "job.yaml", "--on", "kubernetes", "--kind", "pytorchjob")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert "this cluster has no PyTorchJob CRD" in said
    assert "fix: --kind job needs no operator" in said


@pytest.mark.parametrize("option", ["--kind job", "--namespace team", "--context fake"])
def test_options_of_a_cluster_are_refused_elsewhere(option: str, launcher: Command) -> None:
    code, said = launcher("run", "job.yaml", "--on", "local", *option.split())
    assert code == ExitCode.BAD_INPUT
    assert f"{option} without --on kubernetes" in said


def test_a_context_that_is_not_there_is_told_before_anything_is_made(
    server: FakeCluster, launcher: Command
) -> None:
    code, said = launcher("run", "job.yaml", "--on", "kubernetes", "--context", "prod")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert "prod" in said
    assert "fix: kubectl config get-contexts" in said
    assert server.requests == []
    assert not Path("runs").exists()


# -- a run that is there --------------------------------------------------------------------------


@pytest.fixture
def run_id(server: FakeCluster, launcher: Command) -> str:
    """A run that was submitted to context ``fake``; nobody follows it."""
    plan = plan_kubernetes(
        read_job("job.yaml", []),
        run_id="digits-0a1b2c",
        run_root=str(Path("runs").absolute()),
        cwd=str(Path.cwd()),
    )
    RunFolder(Path(plan.run_dir)).create(plan, "", 1.0)
    KubernetesTarget(Path("runs")).submit(plan)
    server.requests.clear()
    return plan.run_id


def remembered(run_id: str) -> dict[str, str]:
    told: dict[str, str] = json.loads(Path("runs", run_id, "cluster.json").read_text())
    return told


def test_a_run_knows_its_cluster_whatever_the_current_context_is(
    server: FakeCluster, launcher: Command, run_id: str, tmp_path: Path
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        config.read_text().replace('"current-context": "fake"', '"current-context": "other"')
    )
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert paths(server) == {"team"}


def test_a_context_that_was_renamed_is_given_once(
    server: FakeCluster, launcher: Command, run_id: str, tmp_path: Path
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(config.read_text().replace('"fake"', '"renamed"'))
    code, said = launcher("status", run_id)
    assert code == ExitCode.TARGET_UNREACHABLE, said
    assert "kubectl config get-contexts" in said
    code, said = launcher("status", run_id, "--context", "renamed")
    assert code == 0, said
    assert remembered(run_id) == {"context": "renamed", "namespace": "team"}
    assert launcher("status", run_id)[0] == 0


@pytest.mark.parametrize("options", [("--namespace", "elsewhere"), ("--context", "gone")])
def test_a_run_that_is_not_in_the_place_named_is_told_and_nothing_is_remembered(
    options: tuple[str, ...], server: FakeCluster, launcher: Command, run_id: str
) -> None:
    code, said = launcher("status", run_id, *options)
    assert code in (ExitCode.BAD_INPUT, ExitCode.TARGET_UNREACHABLE), said
    assert "fix: " in said
    assert remembered(run_id) == {"context": "fake", "namespace": "team"}


# -- inside of a pod ------------------------------------------------------------------------------


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pod with a service account sees; the folder of its token."""
    from kubernetes.config import incluster_config

    account = tmp_path / "serviceaccount"
    account.mkdir()
    for name, text in (("token", "t0ken"), ("ca.crt", "a certificate"), ("namespace", "inside\n")):
        (account / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    monkeypatch.setattr(kubernetes_api, "NAMESPACE_FILE", account / "namespace")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return account


def test_a_pod_without_a_kubeconfig_asks_its_own_cluster_as_its_account(inside: Path) -> None:
    cluster = Cluster()
    assert (cluster.context, cluster.namespace) == (IN_CLUSTER, "inside")
    asked = cluster._client.configuration
    assert asked.host == "https://10.0.0.1:443"
    assert asked.ssl_ca_cert == str(inside / "ca.crt")
    assert asked.api_key["authorization"] == "bearer t0ken"


def test_a_pod_without_a_namespace_file_is_in_the_one_that_it_is_told(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside / "namespace").unlink()
    assert Cluster().namespace == "default"
    monkeypatch.setenv("POD_NAMESPACE", "told")
    assert Cluster().namespace == "told"


def test_a_kubeconfig_wins_over_the_pods_account_and_one_that_is_missing_does_not(
    inside: Path, server: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The server's fixture has set KUBECONFIG by now.
    assert Cluster().context == "fake"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert Cluster().context == IN_CLUSTER
