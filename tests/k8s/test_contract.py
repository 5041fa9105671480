"""What the launcher relies on of an API server, asked with the official typed client.

The same rules hold for the server of the tests and, where it may be used (``REQUIRE=cluster``), for
the cluster of the current context: so that what is tested against the one is true of the other.
"""

import base64
import contextlib
import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.plan import parse_kept_plan
from launcher.targets.kubernetes.pods.states import event_time, is_suspended, message_of
from launcher.targets.kubernetes.render.code import PART_BYTES
from tests.k8s.manifests_table import TABLE, manifest_of
from tests.launcher.fake_cluster import FakeCluster, pod

Object = dict[str, Any]
NO_SUCH_VERSION = "1"


class Server:
    """One namespace of an API server."""

    def __init__(self, api: client.ApiClient, namespace: str, fake: FakeCluster | None) -> None:
        self.api, self.namespace, self.fake = api, namespace, fake
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self.custom = client.CustomObjectsApi(api)

    def has_account(self) -> bool:
        try:
            self.core.read_namespaced_service_account("default", self.namespace)
        except ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    def put(self, kind: str, item: Object) -> None:
        """Makes an object of Kubernetes' own, such as a ``pod``."""
        if self.fake is not None:
            self.fake.put(f"{kind.replace('_', '')}s", item)
        else:
            getattr(self.core, f"create_namespaced_{kind}")(self.namespace, item)

    def create_job(self, item: Object, **options: str) -> Any:
        return self.batch.create_namespaced_job(self.namespace, item, **options)

    def read_job(self, name: str = "digits") -> Any:
        return self.batch.read_namespaced_job(name, self.namespace)

    def watch(self, call: Callable[..., Any], limit_s: int, **options: str) -> Iterator[Any]:
        return watch.Watch().stream(call, self.namespace, timeout_seconds=limit_s, **options)

    def patch_job(self, patch: Object) -> Any:
        return self.patch("batch/v1", "jobs", "digits", patch, "merge-patch+json")

    def apply(self, item: Object, plural: str, **query: str) -> Any:
        given = {"fieldManager": "launcher", "force": "true", **query}
        name = item["metadata"]["name"]
        return self.patch(item["apiVersion"], plural, name, item, "apply-patch+yaml", **given)

    def patch(
        self, version: str, plural: str, name: str, body: Object, kind: str, **query: str
    ) -> Any:
        root = "/apis" if "/" in version else "/api"
        response = self.api.call_api(
            f"{root}/{version}/namespaces/{self.namespace}/{plural}/{name}",
            "PATCH",
            query_params=list(query.items()),
            header_params={"Content-Type": f"application/{kind}", "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
        )
        return json.loads(response.data)


@pytest.fixture(params=["fake", pytest.param("cluster", marks=pytest.mark.cluster)])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    if request.param == "fake":
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        fake = FakeCluster()
        file = str(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        monkeypatch.setenv("KUBECONFIG", file)
        yield Server(config.new_client_from_config(file), "team", fake)
        fake.close()
        return
    file = os.environ.get("KUBECONFIG", "~/.kube/config")
    made = Server(config.new_client_from_config(file), f"contract-{secrets.token_hex(3)}", None)
    made.core.create_namespace({"metadata": {"name": made.namespace}})
    # No pod is admitted before a controller has made the namespace's service account.
    waited(made.has_account, "a service account")
    yield made
    made.core.delete_namespace(made.namespace)


def job(**spec: Any) -> Object:
    """An Indexed Job of two pods that is suspended, so that no pod is ever made."""
    template = {
        "metadata": {"labels": {"app": "digits"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "node", "image": "registry.invalid/none:1"}],
        },
    }
    given = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "suspend": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "digits", "labels": {"app": "digits"}},
        "spec": {**given, "template": template, **spec},
    }


def config_map(text: str = "a", **fields: Any) -> Object:
    metadata = {"name": "digits-agent", "labels": {"app": "digits"}}
    given = {"metadata": metadata, "data": {"key": text}, **fields}
    return {"apiVersion": "v1", "kind": "ConfigMap", **given}


def refused(call: Callable[[], object]) -> tuple[int, str, str]:
    """HTTP's status, Kubernetes' own word, and its message."""
    with pytest.raises(ApiException) as told:
        call()
    body = json.loads(told.value.body)
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", told.value.status)
    return told.value.status, body["reason"], body["message"]


# -- the cluster itself ---------------------------------------------------------------------------


def test_a_cluster_is_known_by_its_kube_system_and_by_its_address_where_that_may_not_be_read(
    server,
):
    if server.fake is not None:
        system = {"metadata": {"name": "kube-system", "uid": "0a1b"}}
        server.fake.objects["namespaces", "kube-system"] = system
    cluster = Cluster(namespace=server.namespace)
    found = cluster.read_identity()
    assert found == Cluster(namespace=server.namespace).read_identity()
    assert found["uid"]
    assert found["server"] == server.api.configuration.host
    if server.fake is not None:
        del server.fake.objects["namespaces", "kube-system"]
    else:
        cluster._client.set_default_header("Impersonate-User", "nobody-at-all")
    assert cluster.read_identity() == {key: found[key] for key in ("server", "authority")}


def test_a_job_that_is_suspended_has_no_pods_and_says_so_whoever_suspended_it(server):
    server.create_job(job())
    assert server.core.list_namespaced_pod(server.namespace).items == []
    found = server.patch_job({"spec": {"suspend": False}})
    assert not is_suspended(found)
    assert is_suspended(server.patch_job({"spec": {"suspend": True}}))


# -- objects --------------------------------------------------------------------------------------


def test_a_dry_run_is_admitted_or_refused_as_the_real_one_and_leaves_nothing(server):
    server.create_job(job(), dry_run="All")
    assert refused(server.read_job)[:2] == (404, "NotFound")
    wrong = job(completions="many")
    assert refused(lambda: server.create_job(wrong, dry_run="All"))[0] in (400, 422)
    server.create_job(job())
    assert refused(lambda: server.create_job(job(), dry_run="All"))[:2] == (409, "AlreadyExists")


def test_strict_validation_refuses_a_field_that_nobody_knows(server):
    wrong = job(unheard=1)
    status, reason, message = refused(
        lambda: server.create_job(wrong, field_validation="Strict", dry_run="All")
    )
    assert (status, reason) == (400, "BadRequest")
    assert "strict decoding error" in message
    assert "unheard" in message


def test_nothing_is_made_in_a_namespace_that_is_not_there(server):
    call = server.batch.create_namespaced_job
    status, reason, message = refused(lambda: call("not-there-at-all", job()))
    assert (status, reason) == (404, "NotFound")
    assert 'namespaces "not-there-at-all" not found' in message


def test_deleting_takes_what_the_object_owns_with_it(server):
    owner = server.create_job(job())
    reference = {
        "apiVersion": "batch/v1", "kind": "Job", "name": "digits", "uid": owner.metadata.uid
    }  # fmt: skip
    server.apply(config_map(), "configmaps")
    patch = {"metadata": {"ownerReferences": [reference]}}
    server.patch("v1", "configmaps", "digits-agent", patch, "merge-patch+json")
    body = client.V1DeleteOptions(propagation_policy="Background")
    server.batch.delete_namespaced_job("digits", server.namespace, body=body)
    listed, chosen = server.core.list_namespaced_config_map, {"label_selector": "app=digits"}
    if listed(server.namespace, **chosen).items:
        events = server.watch(listed, 30, **chosen)
        assert any(event["type"] == "DELETED" for event in events)
    assert refused(server.read_job)[:2] == (404, "NotFound")


# -- patches --------------------------------------------------------------------------------------


def test_an_apply_makes_an_object_then_changes_it_and_drops_what_it_no_longer_names(server):
    first = server.apply({**config_map("a"), "data": {"key": "a", "other": "b"}}, "configmaps")
    second = server.apply(config_map("c"), "configmaps")
    assert second["data"] == {"key": "c"}
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]


def test_an_indexed_job_is_resized_by_both_counts_at_once_and_not_by_one(server):
    server.create_job(job())
    found = server.patch_job({"spec": {"completions": 1, "parallelism": 1}})
    assert (found["spec"]["completions"], found["spec"]["parallelism"]) == (1, 1)
    call = lambda: server.patch_job({"spec": {"completions": 3}})  # noqa: E731
    assert refused(call)[:2] == (422, "Invalid")


# -- lists and watches ----------------------------------------------------------------------------


def raw_items(server: Server, root: str, plural: str) -> list[Object]:
    """The items of a list as they are sent, which no typed client has filled in."""
    response = server.api.call_api(
        f"{root}/namespaces/{server.namespace}/{plural}", "GET",
        auth_settings=["BearerToken"], _preload_content=False, _return_http_data_only=True,
    )  # fmt: skip
    found: list[Object] = json.loads(response.data)["items"]
    return found


def test_the_items_of_a_typed_list_have_neither_kind_nor_version(server):
    server.create_job(job())
    server.apply(config_map(), "configmaps")
    jobs = raw_items(server, "/apis/batch/v1", "jobs")
    maps = raw_items(server, "/api/v1", "configmaps")
    assert [one["metadata"]["name"] for one in jobs] == ["digits"]
    assert "digits-agent" in [one["metadata"]["name"] for one in maps]
    for item in (*jobs, *maps):
        assert not {"kind", "apiVersion"} & item.keys()


def test_a_watch_tells_what_comes_after_its_version_and_ends_when_its_time_is_over(server):
    server.create_job(job())
    version = server.batch.list_namespaced_job(server.namespace).metadata.resource_version
    server.patch_job({"metadata": {"labels": {"new": "1"}}})
    server.batch.delete_namespaced_job("digits", server.namespace, propagation_policy="Background")
    events = list(server.watch(server.batch.list_namespaced_job, 2, resource_version=version))
    assert {event["object"].metadata.name for event in events} == {"digits"}
    types = [event["type"] for event in events]
    assert types[0] == "MODIFIED"
    assert types[-1] == "DELETED"
    assert "ADDED" not in types


def test_a_watch_from_a_forgotten_version_is_gone(server):
    if server.fake is not None:
        server.fake.expire()
    call = server.batch.list_namespaced_job
    events = server.watch(call, 5, resource_version=NO_SUCH_VERSION)
    status = 0
    try:
        list(events)
    except ApiException as error:
        status = error.status
    if status == 0 and server.fake is None:
        pytest.skip("cluster: just started, it has its whole history yet")
    assert status == 410


# -- logs -----------------------------------------------------------------------------------------


def test_the_log_of_a_pod_that_is_not_there_is_not_found(server):
    call = server.core.read_namespaced_pod_log
    assert refused(lambda: call("digits-0", server.namespace))[:2] == (404, "NotFound")


@pytest.mark.parametrize("previous", [False, True])
def test_the_log_of_a_container_that_has_not_started_is_a_bad_request(previous, server):
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    item = pod("digits-0", {"app": "digits"}, phase="Pending", state=waiting)
    server.put("pod", item if server.fake is not None else one_pod())
    call = server.core.read_namespaced_pod_log
    found = refused(lambda: call("digits-0", server.namespace, previous=previous))
    assert found[:2] == (400, "BadRequest")


# -- programs in pods -----------------------------------------------------------------------------


def test_of_a_program_in_a_pod_the_output_and_how_it_ended_are_told(server):
    pipe = subprocess.PIPE
    if server.fake is not None:
        server.fake.put("pods", pod("digits-0", {"app": "digits"}))
        server.fake.programs["digits-0"] = lambda argv: subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe
        )
    else:
        item = one_pod(os.environ["CLUSTER_IMAGE"], command=["sleep", "600"])
        server.core.create_namespaced_pod(server.namespace, item)
        read = server.core.read_namespaced_pod
        phase = lambda: read("digits-0", server.namespace).status.phase  # noqa: E731
        waited(lambda: phase() == "Running", "a pod that runs")
    cluster = Cluster(namespace=server.namespace)
    lines = cluster.execute("digits-0", "node", ["seq", "300000"]).split()
    assert (len(lines), lines[-1]) == (300000, "300000")
    with pytest.raises(TargetError, match="no space"):
        cluster.execute("digits-0", "node", ["sh", "-c", "echo no space >&2; exit 3"])


# -- what a launcher without the run's folder reads ---------------------------------------------


def test_a_config_map_with_the_largest_plan_is_taken_and_found_by_its_run(server):
    manifest = manifest_of(**TABLE["job-long"])
    config = json.loads(json.dumps(manifest.objects[0]))
    config["metadata"].pop("namespace", None)
    server.apply(config, "configmaps", fieldValidation="Strict")
    labels = config["metadata"]["labels"]
    selector = f"{protocol.LABEL_RUN_ID}={labels[protocol.LABEL_RUN_ID]}"
    found = server.core.list_namespaced_config_map(server.namespace, label_selector=selector)
    (kept,) = [one for one in found.items if protocol.NODE_TASK_FILE in (one.data or {})]
    plan = parse_kept_plan(kept.data[protocol.NODE_TASK_FILE], "/runs/x")
    assert len(plan.nodes) == 1000
    assert kept.metadata.creation_timestamp is not None


def test_a_config_map_takes_a_part_of_the_code_and_no_more_than_one_mebibyte(server):
    def of(size: int) -> Object:
        data = base64.b64encode(os.urandom(size)).decode()
        return {**config_map(), "data": {}, "binaryData": {"code.tar.gz.00": data}}

    server.apply(of(PART_BYTES), "configmaps", fieldValidation="Strict")
    status, reason, message = refused(lambda: server.apply(of(2**20 + 1), "configmaps"))
    assert (status, reason) == (422, "Invalid")
    assert "1048576 bytes" in message


def test_a_selector_may_say_which_label_an_object_has_not(server):
    server.apply(config_map(), "configmaps")
    for label, found in (("other", ["digits-agent"]), ("app", [])):
        call = server.core.list_namespaced_config_map
        listed = call(server.namespace, label_selector=f"!{label}").items
        names = [one.metadata.name for one in listed]
        assert [name for name in names if name != "kube-root-ca.crt"] == found


def test_an_event_says_what_it_is_about_and_when(server):
    made = server.create_job(job())
    about = {
        "kind": "Job", "apiVersion": "batch/v1", "name": "digits", "uid": made.metadata.uid,
        "namespace": server.namespace,
    }  # fmt: skip
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "digits.1"},
        "involvedObject": about, "reason": "FailedCreate", "message": "exceeded quota",
        "type": "Warning", "count": 3, "lastTimestamp": "2026-01-01T00:00:03Z",
    }  # fmt: skip
    server.put("event", event)
    listed = raw_items(server, "/api/v1", "events")
    (found,) = [one for one in listed if one["metadata"]["name"] == "digits.1"]
    assert (found["involvedObject"]["uid"], found["count"]) == (made.metadata.uid, 3)
    assert (message_of(found), event_time(found)) == ("exceeded quota", 1767225603.0)


# -- custom resources -----------------------------------------------------------------------------

CUSTOM = {
    "pytorchjob-elastic": ("kubeflow.org", "v1", "pytorchjobs"),
    "trainjob-fixed": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "jobset-fixed": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
}
RUNTIMES = "trainingruntimes"


def rendered(name: str) -> tuple[list[Object], Object]:
    """What the operator must know before the job, as its runtime, and the job."""
    first, job = [], manifest_of(**TABLE[name]).objects[-1]
    for found in manifest_of(**TABLE[name]).objects[:-1]:
        if found["apiVersion"].startswith("trainer."):
            first.append(found)
    for found in (*first, job):
        found["metadata"].pop("namespace", None)
    return first, job


def needs(server: Server, group: str, version: str, plural: str) -> None:
    """Skips where the cluster has no such kind."""
    if server.fake is None:
        try:
            server.custom.list_namespaced_custom_object(group, version, server.namespace, plural)
        except ApiException:
            pytest.skip(f"cluster: no {plural}.{group}")


@pytest.mark.parametrize("name", CUSTOM)
def test_what_is_rendered_for_an_operator_is_admitted_strictly(name, server):
    needs(server, *CUSTOM[name])
    group, version, plural = CUSTOM[name]
    place, strictly = (group, version, server.namespace), {"field_validation": "Strict"}
    first, job = rendered(name)
    for runtime in first:
        server.custom.create_namespaced_custom_object(*place, RUNTIMES, runtime, **strictly)
    try:
        server.custom.create_namespaced_custom_object(
            *place, plural, job, dry_run="All", **strictly
        )
    finally:
        for runtime in first:
            name = runtime["metadata"]["name"]
            server.custom.delete_namespaced_custom_object(*place, RUNTIMES, name)


def test_a_kind_that_the_cluster_does_not_have_is_404_without_its_name(server):
    call = server.custom.list_namespaced_custom_object
    with pytest.raises(ApiException) as told:
        call("unheard.example", "v1", server.namespace, "unheards")
    assert told.value.status == 404
    assert '"' not in str(told.value.body)


# -- what makes pods fail to come, or to start ----------------------------------------------------

LIMIT_S = 120.0
NO_IMAGE = "registry.invalid/none:1"


def waited(find: Callable[[], Any], what: str) -> Any:
    """What is found in the end: controllers and kubelets take their time."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := find()):
        assert time.monotonic() < deadline, what
        time.sleep(0.5)
    return found


OF_A_KUBELET = pytest.mark.parametrize(
    "server", [pytest.param("cluster", marks=pytest.mark.cluster)], indirect=True
)
"""What the server of the tests is only given to tell, and has no rule for."""


def one_pod(image: str = NO_IMAGE, **container: Any) -> Object:
    own = {"name": "node", "image": image, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "digits-0", "labels": {"app": "digits"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [own]},
    }


def no_pods(server: Server) -> None:
    """A quota that admits none."""
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    server.put("resource_quota", quota)


def try_pod(server: Server, item: Object) -> str:
    """What the server says to a pod that is not to be made; empty where it admits it."""
    try:
        server.core.create_namespaced_pod(server.namespace, item, dry_run="All")
    except ApiException as error:
        body = json.loads(error.body)
        assert (body["code"], body["reason"]) == (403, "Forbidden")
        return str(body["message"])
    return ""


def test_a_pod_beyond_the_quota_is_forbidden_in_a_dry_run_too(server):
    no_pods(server)
    said = waited(lambda: "exceeded quota" in (m := try_pod(server, one_pod())) and m, "a quota")
    assert said.startswith('pods "digits-0" is forbidden: exceeded quota: small, requested: pods=1')


def test_a_job_that_may_make_no_pod_has_events_that_its_name_finds(server):
    no_pods(server)
    server.create_job(job(suspend=False))
    if server.fake is not None:
        why = 'Error creating: pods "digits-0-x7k2p" is forbidden: exceeded quota: small'
        server.fake.event("Job", "digits", "FailedCreate", why)
    chosen = "involvedObject.name=digits,reason=FailedCreate"

    def found() -> list[Any]:
        listed = server.core.list_namespaced_event(server.namespace, field_selector=chosen)
        return list(listed.items)

    event = waited(found, "an event")[-1]
    assert (event.type, event.involved_object.kind) == ("Warning", "Job")
    assert "exceeded quota" in event.message or "status unknown for quota" in event.message
    assert (event.last_timestamp or event.event_time or event.metadata.creation_timestamp).tzinfo
    chosen = "involvedObject.name=other"
    assert found() == []


@pytest.mark.parametrize("enforced", [True, False])
def test_pod_security_warns_of_a_job_and_refuses_its_pods_where_it_is_enforced(enforced, server):
    if server.fake is not None:
        server.fake.level, server.fake.warn_level = "restricted" * enforced, "restricted"
    else:
        modes = ("enforce", "warn") if enforced else ("warn",)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in modes}
        server.core.patch_namespace(server.namespace, {"metadata": {"labels": labels}})
    item, single = job(), one_pod()
    item["spec"]["template"]["spec"]["hostNetwork"] = single["spec"]["hostNetwork"] = True
    call = server.batch.create_namespaced_job_with_http_info
    _, status, headers = call(server.namespace, item, dry_run="All")
    assert status == 201
    (warning,) = [value for name, value in headers.items() if name.lower() == "warning"]
    assert warning.startswith('299 - "would violate PodSecurity \\"restricted:latest\\": ')
    assert "hostNetwork=true" in warning
    assert ('violates PodSecurity "restricted:latest"' in try_pod(server, single)) is enforced


@pytest.mark.parametrize(
    ("verb", "resource"), [("get", "pods/log"), ("list", "jobs"), ("delete", "jobs")]
)
def test_what_a_user_may_not_do_is_forbidden_before_it_is_looked_for(verb, resource, server):
    if server.fake is not None:
        server.fake.denied.add((verb, resource))
    else:
        server.api.set_default_header("Impersonate-User", "nobody-at-all")
    calls: dict[str, Callable[[], object]] = {
        "pods/log": lambda: server.core.read_namespaced_pod_log("digits-0", server.namespace),
        "jobs": lambda: server.batch.list_namespaced_job(server.namespace),
    }
    if verb == "delete":
        calls["jobs"] = lambda: server.batch.delete_namespaced_job("digits", server.namespace)
    try:
        status, reason, message = refused(calls[resource])
    finally:
        server.api.default_headers.pop("Impersonate-User", None)
    assert (status, reason) == (403, "Forbidden")
    assert f'cannot {verb} resource "{resource}"' in message
    assert message.partition(" ")[0] in ("pods", "events", "jobs.batch")


def container_state(server: Server, kind: str, reason: str, **container: Any) -> Any:
    """The state that a kubelet reports in the end."""
    item = one_pod(os.environ["CLUSTER_IMAGE"], **container)
    server.core.create_namespaced_pod(server.namespace, item)

    def found() -> Any:
        status = server.core.read_namespaced_pod("digits-0", server.namespace).status
        for one in status.container_statuses or ():
            state = getattr(one.state, kind)
            if state is not None and state.reason == reason:
                return state
        return None

    return waited(found, reason)


@OF_A_KUBELET
def test_a_program_that_is_not_in_the_image_is_a_start_error_with_code_128(server):
    found = container_state(server, "terminated", "StartError", command=["/no/such/program"])
    assert found.exit_code == 128
    assert "no such file" in found.message


@OF_A_KUBELET
def test_a_secret_that_is_missing_keeps_a_container_waiting_and_is_named(server):
    reference = {"secretKeyRef": {"name": "digits-secrets", "key": "KEY"}}
    env = [{"name": "KEY", "valueFrom": reference}]
    found = container_state(server, "waiting", "CreateContainerConfigError", env=env)
    assert found.message == 'secret "digits-secrets" not found'


def test_a_log_begins_each_line_with_its_time_and_the_last_event_of_a_pod_holds_its_end(server):
    if server.fake is not None:
        server.fake.put("pods", pod("digits-0", {"app": "digits"}))
        server.fake.log("digits-0", ("2026-01-01T00:00:01.5Z", "one"), ended=True)
    else:
        words = ["python3", "-uc", "print('one'); import time; time.sleep(600)"]
        item = one_pod(os.environ["CLUSTER_IMAGE"], command=words)
        server.core.create_namespaced_pod(server.namespace, item)

    def read() -> str:
        with contextlib.suppress(ApiException):
            call = server.core.read_namespaced_pod_log
            return str(call("digits-0", server.namespace, timestamps=True))
        return ""

    line = waited(read, "a log").splitlines()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d) one", line)
    version = server.core.list_namespaced_pod(server.namespace).metadata.resource_version
    if server.fake is not None:
        state = {"terminated": {"exitCode": 137, "reason": "Error", "message": "said at the end"}}
        server.fake.put("pods", pod("digits-0", {"app": "digits"}, phase="Failed", state=state))
        server.fake.remove("pods", "digits-0")
    else:
        server.core.delete_namespaced_pod("digits-0", server.namespace)
    call, limit_s = server.core.list_namespaced_pod, 3 if server.fake else 60
    stream = server.watch(call, limit_s, resource_version=version)
    last = next(event["object"] for event in stream if event["type"] == "DELETED")
    assert last.status.container_statuses[0].state.terminated.exit_code == 137
