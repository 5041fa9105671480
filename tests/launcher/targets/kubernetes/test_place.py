"""Which cluster and namespace a command goes to: contexts, options and a pod's own account."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from launcher.api.stopping import stop_run
from launcher.contract.causes import Cause
from launcher.contract.clock import SystemClock
from launcher.contract.errors import ExitCode, InputError
from launcher.contract.process_stat import start_of
from launcher.job.spec import JobSpec
from launcher.runs.folder import RunFolder, process_space
from launcher.runs.outcome import Outcome
from launcher.targets.held.target import HeldSettings
from launcher.targets.kubernetes.api import cluster as cluster_api
from launcher.targets.kubernetes.api.cluster import IN_CLUSTER, Cluster
from launcher.targets.kubernetes.find_runs import move_run
from launcher.targets.kubernetes.plan import plan_kubernetes
from launcher.targets.kubernetes.render.manifest import render_manifest
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.launcher.cluster_run import plan_in, put_pod
from tests.launcher.fake_cluster import FakeCluster
from tests.launcher.runner import Runner
from tests.launcher.targets.kubernetes.pods.test_progress import NO_ROOM

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
def launcher(tmp_path: Path, typed: Command) -> Command:
    """A command in a folder with a job file: its exit code, and all that it said."""
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    return typed


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
    options, namespace, server, launcher
):
    server.namespaces = set()
    code, said = launcher("run", "job.yaml", "--on", "kubernetes", *options)
    assert code == ExitCode.TARGET_UNREACHABLE, said
    assert paths(server) == {namespace}
    where = "".join(f" --context {one}" for name, one in pairwise(options) if name == "--context")
    assert f"fix: kubectl{where} create namespace {namespace}" in said


@pytest.mark.parametrize(
    "option", ["--kind job", "--namespace team", "--context fake", "--kubeconfig k"]
)
def test_options_of_a_cluster_are_refused_elsewhere(option, launcher):
    code, said = launcher("run", "job.yaml", "--on", "local", *option.split())
    assert code == ExitCode.BAD_INPUT
    assert f"{option} without --on kubernetes" in said


def test_a_context_that_is_not_there_is_told_before_anything_is_made(server, launcher):
    code, said = launcher("run", "job.yaml", "--on", "kubernetes", "--context", "prod")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert "prod" in said
    assert "fix: kubectl config get-contexts" in said
    assert server.requests == []
    assert not Path("runs").exists()


BROKEN: dict[str, tuple[dict[str, object] | str, str]] = {
    "no YAML": ("{{{{", "is no kubeconfig"),
    "empty": ("", "is empty"),
    "no such cluster": ({"clusters": []}, "Expected object with name"),
    "a login command that is not there": (
        {"users": [{"name": "me", "user": {"exec": {"command": "/no/login", "args": []}}}]},
        "the login command of context in use failed: [Errno 2]",
    ),
    "nobody there": (
        {"clusters": [{"name": "fake", "cluster": {"server": "http://127.0.0.1:1"}}]},
        "the cluster of context fake does not answer: [Errno 111] Connection refused",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_kubeconfig_that_leads_nowhere_is_told_in_two_lines(broken, server, launcher, tmp_path):
    change, told = BROKEN[broken]
    file = tmp_path / "kubeconfig"
    if isinstance(change, dict):
        for user in change.get("users", ()):  # type: ignore[attr-defined]
            user["user"]["exec"]["apiVersion"] = "client.authentication.k8s.io/v1"
        change = json.dumps({**json.loads(file.read_text()), **change})
    file.write_text(change)
    code, said = launcher("run", "job.yaml", "--on", "kubernetes")
    assert code == ExitCode.TARGET_UNREACHABLE, said
    error, fix = said.splitlines()
    assert told in error
    assert fix.startswith("  fix: kubectl " + "cluster-info" * (broken == "nobody there"))


# -- a run that is there --------------------------------------------------------------------------


@pytest.fixture
def run_id(server: FakeCluster, launcher: Command, run: RunFolder) -> str:
    """A run that was submitted to context ``fake``; nobody follows it."""
    server.requests.clear()
    return run.run_id


def remembered(run_id: str) -> dict[str, str]:
    told: dict[str, str] = json.loads(Path("runs", run_id, "cluster.json").read_text())
    del told["identity"]
    return told


def test_a_run_knows_its_cluster_whatever_the_current_context_is(
    server, launcher, run_id, tmp_path
):
    config = tmp_path / "kubeconfig"
    config.write_text(
        config.read_text().replace('"current-context": "fake"', '"current-context": "other"')
    )
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert paths(server) == {"team"}


def test_a_context_that_was_renamed_is_given_once(server, launcher, run_id, tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text(config.read_text().replace('"fake"', '"renamed"'))
    code, said = launcher("status", run_id)
    assert code == ExitCode.TARGET_UNREACHABLE, said
    assert "kubectl config get-contexts lists what there is; --context NAME, or" in said
    assert f"given once to python -m launcher status {run_id}" in said
    code, said = launcher("status", run_id, "--context", "renamed")
    assert code == 0, said
    assert remembered(run_id) == {"context": "renamed", "namespace": "team"}
    assert launcher("status", run_id)[0] == 0


@pytest.fixture
def elsewhere(server: FakeCluster, launcher: Command, tmp_path: Path) -> tuple[str, Path]:
    """A run that was submitted with ``--kubeconfig``, and the file; its context is not current."""
    file = (tmp_path / "kubeconfig").rename(tmp_path / "theirs")
    file.write_text(file.read_text().replace('"current-context": "fake"', '"current-context": "o"'))
    plan = plan_in(tmp_path)
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "", 1.0)
    KubernetesTarget(tmp_path / "runs", context="fake", kubeconfig="theirs").submit(plan)
    return run.run_id, file


def test_a_run_remembers_the_kubeconfig_that_was_named(server, launcher, elsewhere, tmp_path):
    run_id, file = elsewhere
    place = {"context": "fake", "namespace": "team", "kubeconfig": str(file)}
    assert remembered(run_id) == place
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert f"{run_id}: RUNNING" in said
    # What is printed leads there too.
    server.denied.add(("delete", "jobs"))
    code, said = launcher("stop", run_id)
    assert code == ExitCode.TARGET_UNREACHABLE
    assert f"kubectl --kubeconfig {file} --context fake delete job digits -n team" in said
    server.denied.clear()
    file.rename(tmp_path / "moved")
    code, said = launcher("status", run_id)
    assert f"{file}: no such file" in said
    assert f"--kubeconfig FILE, given once to python -m launcher status {run_id}" in said
    code, said = launcher("status", run_id, "--kubeconfig", "moved")
    assert code == 0, said
    assert launcher("status", run_id)[0] == 0


def test_a_hint_about_pods_names_the_place_of_the_run(server, launcher, elsewhere):
    run_id, file = elsewhere
    put_pod(server, "digits-0", phase="Pending", state={}, conditions=[NO_ROOM])
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert f"kubectl --kubeconfig {file} --context fake -n team describe nodes" in said


@pytest.mark.parametrize("options", [("--namespace", "elsewhere"), ("--context", "gone")])
def test_a_run_that_is_not_in_the_place_named_is_told_and_nothing_is_remembered(
    options, server, launcher, run_id
):
    code, said = launcher("status", run_id, *options)
    assert code in (ExitCode.BAD_INPUT, ExitCode.TARGET_UNREACHABLE), said
    assert "fix: " in said
    assert remembered(run_id) == {"context": "fake", "namespace": "team"}


def test_a_stop_that_its_living_launcher_has_done_is_done_whatever_the_kubeconfig_says_by_then(
    server, run, tmp_path
):
    other, follower = FakeCluster(), subprocess.Popen(["sleep", "600"])
    mark = {"pid": follower.pid, "start": start_of(follower.pid), "sees": process_space()}
    (run.path / "launcher.json").write_text(json.dumps(mark))

    class Later(SystemClock):
        def sleep(self, seconds: float) -> None:
            run.write_outcome(
                Outcome(cause=Cause.STOP_REQUESTED, run_id=run.run_id, started_at=1.0)
            )
            follower.kill()
            follower.wait()

    try:
        other.write_kubeconfig(tmp_path / "kubeconfig")
        assert stop_run(run, 5.0, Later()) == f"{run.run_id}: stopped, stop-requested"
    finally:
        follower.kill()
        other.close()


@pytest.mark.parametrize("has_uid", [False, True])
@pytest.mark.parametrize("words", [("status",), ("stop",), ("logs",), ("ps",)])
def test_another_cluster_with_a_context_of_that_name_ends_nothing(
    words, has_uid, server, launcher, run_id, tmp_path
):
    config, folder = tmp_path / "kubeconfig", Path("runs", run_id)
    first = config.read_text()
    other = FakeCluster()
    try:
        if has_uid:
            other.objects["namespaces", "kube-system"] = {"metadata": {"uid": "another"}}
        other.write_kubeconfig(config)
        code, said = launcher(*words, *([run_id] if words != ("ps",) else []))
    finally:
        other.close()
    assert not (folder / "outcome.json").exists(), said
    if words != ("ps",):
        assert code == ExitCode.TARGET_UNREACHABLE, said
        assert "not the cluster" in said
        assert f"launcher status {run_id} --kubeconfig FILE" in said
        assert "kubectl delete" not in said
    # The run is there as before.
    config.write_text(first)
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert "running" in said


def test_a_cluster_whose_address_has_changed_is_known_by_its_uid(server, launcher, run_id):
    system = {"metadata": {"name": "kube-system", "uid": "one"}}
    server.objects["namespaces", "kube-system"] = system
    file = Path("runs", run_id, "cluster.json")
    told = json.loads(file.read_text())
    told["identity"] = {"server": "https://10.0.0.9", "authority": "older", "uid": "one"}
    file.write_text(json.dumps(told))
    server.delete("jobs", "digits")
    code, said = launcher("status", run_id)
    assert code == 0, said
    assert "STOPPED" in said


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
    monkeypatch.setattr(cluster_api, "NAMESPACE_FILE", account / "namespace")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return account


def test_a_pod_without_a_kubeconfig_asks_its_own_cluster_as_its_account(inside):
    cluster = Cluster()
    assert (cluster.context, cluster.namespace) == (IN_CLUSTER, "inside")
    asked = cluster._client.configuration
    assert asked.host == "https://10.0.0.1:443"
    assert asked.ssl_ca_cert == str(inside / "ca.crt")
    assert asked.auth_settings()["BearerToken"]["value"] == "bearer t0ken"


def test_a_kubeconfig_wins_over_the_pods_account_and_one_that_is_missing_does_not(
    inside, server, monkeypatch, tmp_path
):
    # The server's fixture has set KUBECONFIG by now.
    assert Cluster().context == "fake"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert Cluster().context == IN_CLUSTER


# -- what runs there ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "nodes"), [("pytorchjob", 2), ("jobset", 3), ("trainjob", 3), ("job", 2)]
)
def test_the_runs_of_a_cluster_are_listed_whoever_started_them(kind, nodes, server, launcher):
    job = JobSpec.model_validate(
        {
            "name": "digits",
            "command": ["-m", "train"],
            "nnodes": 3 if kind in ("jobset", "trainjob") else "1:2",
            "kubernetes": {"kind": kind, "checkpoint": "ephemeral"},
        }
    )
    plan = plan_kubernetes(job, run_id="theirs-1", run_root="/another/runs", cwd="/another")
    for item in render_manifest(plan).objects:
        Cluster().apply(item)
    server.kinds &= {"configmaps", "services", "jobs", "trainingruntimes", f"{kind}s"}
    code, said = launcher("ps", "--context", "fake", "--json")
    assert code == 0, said
    (row,) = json.loads(said)
    assert (row["run_id"], row["job"], row["state"]) == ("theirs-1", "digits", "running")
    assert (row["nnodes"], row["folder"]) == (nodes, "")
    assert "no runs" in launcher("ps")[1]
    assert "no runs" in launcher("ps", "-n", "elsewhere")[1]


@pytest.mark.parametrize(
    ("status", "suspend", "state"),
    [
        ({"conditions": [{"type": "Complete", "status": "True"}]}, False, "succeeded"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, False, "failed"),
        ({}, True, "suspended"),
    ],
)
def test_what_is_left_of_ended_runs_is_listed_where_all_are_asked_for(
    status, suspend, state, server, launcher, run_id
):
    job = server.objects["jobs", "digits"]
    server.put("jobs", {**job, "status": status, "spec": {**job["spec"], "suspend": suspend}})
    rows = json.loads(launcher("ps", "--on", "kubernetes", "--all", "--json")[1])
    assert [(row["run_id"], row["state"]) for row in rows] == [(run_id, state)]
    assert rows[0]["folder"].endswith(run_id)
    shown = launcher("ps", "--on", "kubernetes")[1]
    assert (run_id in shown) is suspend


# -- rights ---------------------------------------------------------------------------------------

RBAC = Path(__file__).parents[4] / "k8s/base/rbac.yaml"
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


def right_of(method: str, path: str, query: dict[str, str]) -> tuple[str, str, str]:
    """The API group, resource and verb of a request, as RBAC counts them."""
    root, _, rest = path.partition("/namespaces/")
    words = rest.split("/")[1:]
    group = root.split("/")[2] if root.startswith("/apis/") else ""
    verb = VERBS[method]
    if method == "GET" and len(words) == 1:
        verb = "watch" if query.get("watch") else "list"
    return group, "/".join([words[0], *words[2:]]), verb


def rights_granted() -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for item in yaml.safe_load_all(RBAC.read_text())
        if item["kind"] == "Role"
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rights_asked(server: FakeCluster) -> set[tuple[str, str, str]]:
    # kube-system, of which the identity is made, may be refused.
    return {right_of(*one) for one in server.requests if "/namespaces/team/" in one[1]}


@pytest.mark.kubectl
def test_the_role_that_is_shipped_grants_every_call_of_a_door(server, launcher, run_id, tmp_path):
    put_pod(server, "digits-0")
    server.programs["digits-0"] = lambda argv: subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    server.lets_anybody_in = True
    server.requests.clear()
    done = Runner(tmp_path)("exec", run_id, "--node", "0", "--", "echo", "entered")
    assert "entered" in done.stdout, done.stderr
    asked = rights_asked(server)
    assert {("", "pods", "get"), ("", "pods/exec", "get")} <= asked
    assert asked - rights_granted() == set()


def test_a_kind_that_may_not_be_listed_is_left_out_with_a_note(server, launcher, run_id):
    server.denied |= {("list", "pytorchjobs"), ("list", "trainjobs")}
    code, said = launcher("ps", "--on", "kubernetes")
    assert code == 0, said
    assert run_id in said
    notes = [line for line in said.splitlines() if line.startswith("note: ")]
    assert [note.split()[1] for note in notes] == [
        "pytorchjobs.kubeflow.org",
        "trainjobs.trainer.kubeflow.org",
    ]
    assert all("kubectl auth can-i --list -n team" in note for note in notes)
    told = json.loads(launcher("ps", "--on", "kubernetes", "--json")[1].partition("note:")[0])
    assert [row["run_id"] for row in told] == [run_id]


def test_where_no_kind_may_be_listed_that_is_the_answer(server, launcher, run_id):
    server.denied |= {("list", f"{kind}s") for kind in ("pytorchjob", "trainjob", "jobset", "job")}
    code, said = launcher("ps", "--on", "kubernetes")
    assert code == ExitCode.TARGET_UNREACHABLE
    assert 'User "me" cannot list resource "pytorchjobs" in API group "kubeflow.org"' in said


@pytest.mark.parametrize(
    "words", [("run", "train.py", "--in", "dev", "-n", "team"), ("stop", "dev", "-n", "team")]
)
def test_the_verbs_of_a_hold_take_the_options_that_lead_to_a_cluster(words, server, typed):
    code, said = typed(*words)
    assert code == ExitCode.BAD_INPUT
    assert "no hold 'dev'" in said or "no run 'dev'" in said


def test_a_run_in_a_hold_is_no_object_of_a_cluster(make_plan, tmp_path):
    own = HeldSettings(hold="dev-3f9a01")
    run = RunFolder(tmp_path / "r")
    run.create(replace(make_plan(), target="kubernetes", own=own), "", 0.0)
    with pytest.raises(InputError, match="is on no cluster"):
        move_run(run, {"context": "other"})
    with pytest.raises(InputError) as caught:
        move_run(run, {"namespace": "5"})
    lines = f"launcher logs {run.run_id} | tail -n 5"
    assert caught.value.hint == f"-n names a namespace; the last lines: {lines}"
