"""A small server that speaks the Kubernetes wire format for the calls that the launcher uses.

Objects, lists, watches and logs as an API server sends them, with faults on request. It runs no
controller but the garbage collector: tests put pods and conditions in place. What it refuses is in
``fake_admission``; ``tests/k8s/test_contract.py`` holds it and real clusters to the same rules.

Not as there: no defaults are filled in, one manager applies, lists come in one piece, and a pod has
one container.
"""

import contextlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.launcher.fake_admission import CORE, CUSTOM, Write, refuse, warnings_of
from tests.launcher.fake_exec import serve_exec
from tests.waiting import wait_until

Object = dict[str, Any]
NAMED = {
    *("persistentvolumeclaims", "resourcequotas", "podgroups"),
    "events",
}
"""Kinds of which objects are only read."""
KINDS = {*CORE, *CUSTOM, *NAMED}
BUILT_IN = set(CORE)
GROUPS = {
    "/api/v1": {
        "ConfigMap": "configmaps",
        "Secret": "secrets",
        "Service": "services",
        "Pod": "pods",
        "PersistentVolumeClaim": "persistentvolumeclaims",
    },
    "/apis/kubeflow.org/v1": {"PyTorchJob": "pytorchjobs"},
    "/apis/trainer.kubeflow.org/v1alpha1": {
        "TrainJob": "trainjobs",
        "TrainingRuntime": "trainingruntimes",
    },
    "/apis/jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
    "/apis/batch/v1": {"Job": "jobs"},
    "/apis/scheduling.volcano.sh/v1beta1": {"PodGroup": "podgroups"},
}


@dataclass
class Fault:
    """The next request whose method and path hold these ends so. ``status`` 0 cuts the connection,
    after ``after`` bytes of a stream."""

    method: str
    path: str
    status: int
    message: str = "injected"
    after: int = 0


@dataclass
class Log:
    """One container's output: (timestamp, text) lines; ``ended`` when no more will come."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False


PLURAL_OF = {kind: plural for plural, kind in (CORE | CUSTOM).items()}


class FakeCluster:
    """The server's state; everything is locked by ``changed``."""

    def __init__(self, *, certificate: Path | None = None, key: Path | None = None) -> None:
        """With a certificate of its own making it speaks TLS, which no client can verify."""
        self.changed = threading.Condition()
        self.objects: dict[tuple[str, str], Object] = {}
        self.events: list[tuple[int, str, str, Object]] = []
        self.logs: dict[tuple[str, int], Log] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.kinds = set(KINDS)
        self.namespaces = {"team"}
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources that the user may not, as an access review tells, and as they are
        refused: ``("list", "jobs")``, ``("get", "pods/log")``."""
        self.level = ""
        """What Pod Security enforces in the namespace; empty for nothing."""
        self.warn_level = ""
        """What it warns of; empty for what it enforces."""
        self.away = False
        """Whether every connection breaks, as when no API server is there."""
        self.hangs = False
        """Whether it accepts connections and answers none, as a server does that is overloaded."""
        self.hangs_at = ""
        """The same for requests of this method alone."""
        self.lost_logs: set[str] = set()
        """Pods whose containers the runtime has forgotten, and their logs with them."""
        self.programs: dict[str, Callable[[list[str]], subprocess.Popen[bytes]]] = {}
        """By pod, what starts a program in it."""
        self.after_log: Callable[[], object] = lambda: None
        """What happens when a log has been sent to its end."""
        self.token = "t0ken"
        """The one that is valid: any other has expired, or was revoked."""
        self.lets_anybody_in = False
        """For kubectl, which sends its token over TLS alone."""
        self.oldest_version = 0
        self.version = 100
        self._closing = False
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None and key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: Path, namespace: str = "team") -> Path:
        """A file with the current context ``fake``, and ``other`` in namespace ``others``."""
        spaces = {"fake": namespace, "other": "others"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": self._named()}],
            "users": [{"name": "me", "user": {"token": self.token}}],
            "contexts": [
                {"name": name, "context": {"cluster": "fake", "user": "me", "namespace": space}}
                for name, space in spaces.items()
            ],
        }
        path.write_text(json.dumps(config))
        return path

    def _named(self) -> Object:
        skips = {"insecure-skip-tls-verify": True} if self.url.startswith("https") else {}
        return {"server": self.url, **skips}

    # -- what a test does in place of controllers --------------------------------------------------

    def put(self, plural: str, item: Object, event: str = "MODIFIED") -> Object:
        with self.changed:
            self.version += 1
            metadata = item["metadata"]
            metadata["resourceVersion"] = str(self.version)
            metadata.setdefault("uid", f"uid-{self.version}")
            metadata.setdefault("creationTimestamp", f"2026-01-01T00:00:{self.version % 60:02d}Z")
            key = (plural, metadata["name"])
            event = "ADDED" if key not in self.objects else event
            self.objects[key] = item
            if event == "DELETED":
                del self.objects[key]
            self.events.append((self.version, plural, event, json.loads(json.dumps(item))))
            self.changed.notify_all()
        return item

    def remove(self, plural: str, name: str) -> None:
        self.put(plural, self.objects[plural, name], "DELETED")

    def delete(self, plural: str, name: str) -> None:
        """Removes an object and, as the garbage collector does later, what it owns."""
        uid = self.objects[plural, name]["metadata"]["uid"]
        self.remove(plural, name)
        for key, item in list(self.objects.items()):
            owners = item["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners):
                self.remove(*key)

    def expire(self) -> None:
        """Forgets history, as etcd does: watches of an older version are refused."""
        with self.changed:
            self.version += 1
            self.oldest_version = self.version
            self.events.clear()

    def log(self, pod: str, *lines: tuple[str, str], restart: int = 0, ended: bool = False) -> None:
        with self.changed:
            log = self.logs.setdefault((pod, restart), Log())
            log.lines += lines
            log.ended = log.ended or ended
            self.changed.notify_all()

    def event(
        self, kind: str, name: str, reason: str, message: str, *, type_: str = "Warning"
    ) -> Object:
        """As a controller records one about an object."""
        about = self.objects.get((PLURAL_OF[kind], name), {"metadata": {}})["metadata"]
        at = f"2026-01-01T00:01:{self.version % 60:02d}Z"
        item = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": f"{name}.{self.version:x}", "creationTimestamp": at},
            "involvedObject": {"kind": kind, "name": name, "uid": about.get("uid", "")},
            "reason": reason,
            "message": message,
            "type": type_,
            "firstTimestamp": at,
            "lastTimestamp": at,
        }
        return self.put("events", item)

    def asked(self, method: str, part: str) -> list[dict[str, str]]:
        """The queries of the requests so far with that method and part of a path."""
        return [query for verb, path, query in self.requests if verb == method and part in path]

    def until(self, happened: Callable[[], Any]) -> None:
        wait_until(happened, lambda: self.requests[-20:])

    @property
    def closing(self) -> bool:
        return self._closing


def _is_true(query: dict[str, str], name: str) -> bool:
    """As apimachinery's Convert_Slice_string_To_bool: all but "false" and "0", in any case."""
    return query.get(name, "false").lower() not in ("false", "0")


class _CutError(Exception):
    """The connection is broken off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else each answer waits 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True
    cluster: FakeCluster

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        # A client may reset its connection between two requests.
        with contextlib.suppress(ConnectionResetError):
            super().handle()

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        url = urlparse(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        self._cut_after: int | None = None
        self.cluster.requests.append((method, url.path, query))
        is_known = self.headers["Authorization"] == f"Bearer {self.cluster.token}"
        if not (is_known or self.cluster.lets_anybody_in):
            return self._fail(401, "Unauthorized", "Unauthorized")
        try:
            while self.cluster.hangs or method == self.cluster.hangs_at:
                if self.cluster.closing:
                    raise _CutError
                time.sleep(0.05)
            if self.cluster.away:
                raise _CutError
            for fault in list(self.cluster.faults):
                if fault.method == method and fault.path in f"{url.path}?{url.query}":
                    self.cluster.faults.remove(fault)
                    if fault.status:
                        return self._fail(fault.status, fault.message)
                    self._cut_after = fault.after
                    if not fault.after:
                        raise _CutError
            self._route(method, url.path, query, body)
        except (_CutError, BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            self.connection.close()

    def _route(self, method: str, path: str, query: dict[str, str], body: Object) -> None:
        if path == "/version":
            return self._send(200, {"gitVersion": "v1.31.0"})
        if path.endswith("/selfsubjectaccessreviews"):
            return self._review(body)
        if path in GROUPS:
            return self._discover(path)
        if path in ("/api", "/apis"):
            return self._groups(path)
        parts = path.strip("/").split("/")
        if "namespaces" not in parts or len(parts) == parts.index("namespaces") + 2:
            return self._of_cluster(parts)
        at = parts.index("namespaces") + 2
        namespace, plural, rest = parts[at - 1], parts[at], parts[at + 1 :]
        if plural not in self.cluster.kinds:
            if plural in BUILT_IN:
                return self._fail(404, "not found")
            # As sent for a path that no resource is registered for: text, no Status.
            return self._text(404, "404 page not found\n")
        if (refusal := self._forbidden(method, path, plural, rest, query)) is not None:
            return self._fail(403, refusal, "Forbidden")
        if namespace not in self.cluster.namespaces:
            return self._elsewhere(method, namespace, plural, rest)
        if rest[1:] == ["exec"]:
            return self._exec(rest[0])
        if rest[1:] == ["log"]:
            return self._log(rest[0], query)
        if method == "GET" and not rest:
            return self._watch(plural, query) if query.get("watch") else self._list(plural, query)
        return self._object(method, plural, rest[0] if rest else "", query, body)

    def _forbidden(
        self, method: str, path: str, plural: str, rest: list[str], query: dict[str, str]
    ) -> str | None:
        """In the words of RBAC's authorizer, which is asked before anything is looked for."""
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, "get")
        if method == "GET" and not rest:
            verb = "watch" if query.get("watch") else "list"
        resource = "/".join([plural, *rest[1:]])
        verbs = {verb, "create"} if rest[1:] == ["exec"] else {verb}
        if not self.cluster.denied & {(one, resource) for one in verbs}:
            return None
        group = path.split("/")[2] if path.startswith("/apis/") else ""
        namespace = path.partition("/namespaces/")[2].partition("/")[0]
        name = f' "{rest[0]}"' if rest else ""
        return (
            f'{plural}{f".{group}" if group else ""}{name} is forbidden: User "me" cannot {verb} '
            f'resource "{resource}" in API group "{group}" in the namespace "{namespace}"'
        )

    def _elsewhere(self, method: str, namespace: str, plural: str, rest: list[str]) -> None:
        """Reading in a namespace that is not there finds nothing; writing is told why."""
        if method == "GET" and not rest:
            return self._send(200, {"kind": "PodList", "metadata": {}, "items": []})
        if method == "GET":
            return self._fail(404, f'{plural} "{rest[0]}" not found', "NotFound")
        return self._fail(404, f'namespaces "{namespace}" not found', "NotFound")

    def _review(self, body: Object) -> None:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        allowed = (asked["verb"], resource) not in self.cluster.denied
        self._send(201, {**body, "status": {"allowed": allowed}})

    def _discover(self, path: str) -> None:
        known = GROUPS[path].items()
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        kinds = [
            {"kind": kind, "name": plural, "singularName": kind.lower(), "namespaced": True,
             "verbs": verbs}
            for kind, plural in known
            if plural in self.cluster.kinds
        ]  # fmt: skip
        if not kinds:
            return self._text(404, "404 page not found\n")
        version = path.removeprefix("/apis/").removeprefix("/api/")
        names = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
        return self._send(200, {**names, "resources": kinds})

    def _groups(self, path: str) -> None:
        """What kubectl asks before all else, to learn where a kind is."""
        if path == "/api":
            return self._send(200, {"kind": "APIVersions", "versions": ["v1"]})
        groups = []
        for found in GROUPS:
            _, _, version = found.removeprefix("/apis/").rpartition("/")
            if found.startswith("/apis/"):
                named = {"groupVersion": found.removeprefix("/apis/"), "version": version}
                name = found.split("/")[2]
                groups.append({"name": name, "versions": [named], "preferredVersion": named})
        return self._send(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    def _of_cluster(self, parts: list[str]) -> None:
        """A namespace, to be read alone."""
        if parts[-2:-1] != ["namespaces"]:
            return self._text(404, "404 page not found\n")
        held = self.cluster.objects.get(("namespaces", parts[-1]))
        return self._send(200, held) if held else self._fail(404, "not found", "NotFound")

    def _object(
        self, method: str, plural: str, name: str, query: dict[str, str], body: Object
    ) -> None:
        name = name or body["metadata"]["name"]
        held = self.cluster.objects.get((plural, name))
        dry = query.get("dryRun") == "All"
        if method == "POST" and held is not None:
            return self._fail(409, f'{plural} "{name}" already exists', "AlreadyExists")
        applies = "apply-patch" in (self.headers.get("Content-Type") or "")
        if method in ("GET", "DELETE", "PATCH") and held is None and not applies:
            return self._fail(404, f'{plural} "{name}" not found', "NotFound")
        if method == "GET":
            return self._send(200, held)
        if method == "DELETE":
            self.cluster.delete(plural, name)
            return self._send(200, {"kind": "Status", "status": "Success"})
        merged = _applied(held, body) if applies else _merged(held or {}, body)
        write = Write(
            method=method,
            plural=plural,
            content_type=(self.headers.get("Content-Type") or "").partition(";")[0],
            query=query,
            body=body,
            held=held,
            merged=merged,
            level=self.cluster.level,
            warn_level=self.cluster.warn_level or self.cluster.level,
            quotas=tuple(o for (p, _), o in self.cluster.objects.items() if p == "resourcequotas"),
            pods=sum(p == "pods" for p, _ in self.cluster.objects),
            runtimes=tuple(n for p, n in self.cluster.objects if p == "trainingruntimes"),
        )
        if (refusal := refuse(write)) is not None:
            return self._fail(refusal.status, refusal.message, refusal.reason)
        merged.setdefault("metadata", {}).setdefault("namespace", "team")
        if not dry:
            merged = self.cluster.put(plural, merged)
        return self._send(200 if held else 201, merged, warnings_of(write))

    def _list(self, plural: str, query: dict[str, str]) -> None:
        with self.cluster.changed:
            items = [o for (p, _), o in self.cluster.objects.items() if p == plural]
            found = [o for o in items if _selected(o, query.get("labelSelector", ""))]
            found = [o for o in found if _has_fields(o, query.get("fieldSelector", ""))]
            # As they lie in etcd: by name.
            found.sort(key=lambda o: o["metadata"]["name"])
            version = str(self.cluster.version)
        if plural in BUILT_IN:
            # The list says both once for all items; custom resources have them each.
            found = [{k: v for k, v in o.items() if k not in ("kind", "apiVersion")} for o in found]
        kind = (CORE | CUSTOM).get(plural, "")
        names = {"kind": f"{kind}List", "apiVersion": self._api_version()}
        self._send(200, {**names, "metadata": {"resourceVersion": version}, "items": found})

    def _api_version(self) -> str:
        """The path's: ``/api/v1/...`` or ``/apis/GROUP/VERSION/...``."""
        return self.path.partition("/namespaces/")[0].removeprefix("/apis/").removeprefix("/api/")

    def _watch(self, plural: str, query: dict[str, str]) -> None:
        sent = int(query["resourceVersion"])
        self._start_stream("application/json")
        if sent < self.cluster.oldest_version:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            self._chunk((json.dumps({"type": "ERROR", "object": status}) + "\n").encode())
            return self._end_stream()
        ends_at = time.monotonic() + float(query.get("timeoutSeconds", "3600"))
        while not self.cluster.closing and time.monotonic() < ends_at:
            if self.cluster.away:
                raise _CutError
            with self.cluster.changed:
                news = [e for e in self.cluster.events if e[0] > sent]
                if not news:
                    self.cluster.changed.wait(min(0.2, max(0.0, ends_at - time.monotonic())))
            for version, changed, event, item in news:
                sent = version
                if changed == plural and _selected(item, query.get("labelSelector", "")):
                    line = json.dumps({"type": event, "object": item}) + "\n"
                    # In two pieces: no reader may take a chunk for a line.
                    self._chunk(line[:20].encode())
                    self._chunk(line[20:].encode())
        return self._end_stream()

    def _exec(self, pod: str) -> None:
        """.../api-concepts: since 1.35 a websocket needs the right to create too."""
        asked = parse_qs(urlparse(self.path).query)
        start = self.cluster.programs.get(pod)
        if start is None:
            return self._fail(404, f'pods "{pod}" not found', "NotFound")
        return serve_exec(self, start(asked["command"]))

    def _log(self, pod: str, query: dict[str, str]) -> None:
        item = self.cluster.objects.get(("pods", pod))
        if item is None:
            return self._fail(404, f'pods "{pod}" not found', "NotFound")
        status = item["status"]["containerStatuses"][0]
        restart = status["restartCount"] - (_is_true(query, "previous"))
        container = f'container "{status["name"]}" in pod "{pod}"'
        if restart < 0:
            return self._fail(400, f"previous terminated {container} not found", "BadRequest")
        if restart == 0 and (waits := status["state"].get("waiting")):
            reason = waits.get("reason", "ContainerCreating")
            return self._fail(400, f"{container} is waiting to start: {reason}", "BadRequest")
        log = self.cluster.logs.setdefault((pod, restart), Log())
        self._start_stream("text/plain")
        if pod in self.cluster.lost_logs:
            # The kubelet's words, in the place of a log and with a good status.
            self._chunk(b"unable to retrieve container logs for containerd://0a1b2c3d4e5f")
            return self._end_stream()
        sent, since = 0, query.get("sinceTime", "")
        while not self.cluster.closing:
            if pod in self.cluster.lost_logs:
                # The node went away, and the stream with it.
                raise _CutError
            with self.cluster.changed:
                news, ended = log.lines[sent:], log.ended
                if not news and not ended:
                    self.cluster.changed.wait(0.2)
            sent += len(news)
            for stamp, text in news:
                if stamp[:19] >= since[:19]:
                    self._chunk(f"{stamp} {text}\n".encode())
            if not _is_true(query, "follow") or (ended and not news):
                self.cluster.after_log()
                break
        return self._end_stream()

    # -- the wire ------------------------------------------------------------------------------

    def _send(self, code: int, body: Any, warnings: tuple[str, ...] = ()) -> None:
        self._body(code, json.dumps(body).encode(), "application/json", warnings)

    def _text(self, code: int, text: str) -> None:
        self._body(code, text.encode(), "text/plain")

    def _body(self, code: int, data: bytes, kind: str, warnings: tuple[str, ...] = ()) -> None:
        self.send_response(code)
        for text in warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            self.send_header("Warning", f'299 - "{quoted}"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, code: int, message: str, reason: str = "") -> None:
        status = {"kind": "Status", "status": "Failure", "message": message, "code": code}
        self._send(code, {**status, "reason": reason})

    def _start_stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        if self._cut_after is not None and len(data) >= self._cut_after:
            part = data[: self._cut_after]
            self.wfile.write(f"{len(data):x}\r\n".encode() + part)
            self.wfile.flush()
            raise _CutError
        if self._cut_after is not None:
            self._cut_after -= len(data)
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


def _merged(held: Object, patch: Object) -> Object:
    """JSON merge patch, which is near enough to server-side apply for whole objects."""
    merged = dict(held)
    for key, value in patch.items():
        if isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _applied(held: Object | None, given: Object) -> Object:
    """As an apply by the only manager: what it no longer names goes, but what the server added
    stays. kubernetes.io/docs/reference/using-api/server-side-apply"""
    own = {"metadata": {**(held or {}).get("metadata", {}), **given["metadata"]}}
    return {**given, **own} | ({"status": held["status"]} if held and "status" in held else {})


def _selected(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    wanted = [pair.partition("=") for pair in selector.split(",") if pair]
    return all(
        labels.get(key) == value
        if is_
        else key[1:] not in labels
        if key[0] == "!"
        else key in labels
        for key, is_, value in wanted
    )


def _has_fields(item: Object, selector: str) -> bool:
    """kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors"""
    for pair in filter(None, selector.split(",")):
        path, _, value = pair.partition("=")
        found: Any = item
        for key in path.split("."):
            found = (found or {}).get(key)
        if found != value:
            return False
    return True


# -- pods, as a kubelet reports them -----------------------------------------------------------


def pod(
    name: str,
    labels: dict[str, str],
    *,
    phase: str = "Running",
    state: Object | None = None,
    restarts: int = 0,
    last: Object | None = None,
    conditions: list[Object] | None = None,
    uid: str | None = None,
    **status: Any,
) -> Object:
    """A pod's object; ``state`` is its container's, running unless given."""
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    container = {
        "name": "node",
        "image": "example/train:1",
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": restarts,
        "state": running if state is None else state,
        "lastState": last or {},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "labels": labels, "uid": uid or name},
        "spec": {"containers": [{"name": "node", "image": "example/train:1"}]},
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": [container],
            **status,
        },
    }


def ended(code: int, reason: str = "Error", **more: Any) -> Object:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": reason, **more}}
