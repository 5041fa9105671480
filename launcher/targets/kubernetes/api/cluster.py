"""The Kubernetes API, by the official client alone: how long requests may take.

Contexts, namespaces and in-cluster configuration are those that kubectl would use.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.contract import typed
from launcher.contract.errors import TargetError
from launcher.targets.kubernetes.api.kubeconfig import (
    MALFORMED,
    Login,
    config_files,
    has_config,
    is_in_pod,
    official_client,
    open_client,
)
from launcher.targets.kubernetes.api.refusals import NOT_FOUND, ApiError, api_errors

Object = dict[str, Any]

REQUEST_LIMIT_S = 30.0
ANSWER_LIMIT_S = 3.5
"""How long a command that only looks waits for the server."""
OPENED = "OPENED"
WATCH_S = 240
"""How long the server keeps a watch open."""
STREAM_SILENCE_S = 330.0
"""How long a stream may bring nothing."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
WRITTEN = {"fieldManager": "launcher", "fieldValidation": "Strict"}
DRY_RUN = {"dryRun": "All"}
IN_CLUSTER = "in-cluster"
"""The name of the context of a pod that has no kubeconfig."""


def plural(kind: str) -> str:
    """A kind as paths of the API and rights name it: ``configmaps``."""
    return f"{kind.lower()}s"


@dataclass(frozen=True, kw_only=True)
class ObjectPlace:
    """Where an object lies: its kind, API version and name."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> ObjectPlace:
        """The place of an object."""
        name = item["metadata"]["name"]
        return cls(api_version=item["apiVersion"], kind=item["kind"], name=name)


class Cluster:
    """One namespace of the cluster that ``context`` of ``kubeconfig`` names.

    None means the current context, its namespace, and the file that kubectl would use. ``run_id``
    is the run that was submitted there. Every method may raise ``TargetError``, or ``ApiError`` if
    the server refused.
    """

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        run_id: str = "",
    ) -> None:
        self._context = context
        self._namespace = namespace
        self.kubeconfig = kubeconfig and str(Path(kubeconfig).expanduser().absolute())
        self._run_id = run_id
        self._of_thread = threading.local()
        self.warnings: list[str] = []
        """The server's warnings, each once; the caller prints and removes them."""

    @functools.cached_property
    def _client(self) -> Login:
        return Login(self._open_client)

    def _open_client(self) -> Any:
        files = None if self._in_cluster else self._files
        fix = "export KUBECONFIG=FILE, or --kubeconfig FILE"
        if files is None or has_config(files):
            kubectl = shlex.join(("kubectl", *self._named_file))
            fix = f"{kubectl} config get-contexts lists what there is; "
            fix += "--context NAME, or --kubeconfig FILE"
        if self._run_id:
            fix += f", given once to {typed.command('status', self._run_id)}"
        return open_client(files, self._context, kubectl=self.kubectl, fix=fix)

    @property
    def _files(self) -> str:
        return self.kubeconfig or config_files()

    @property
    def _in_cluster(self) -> bool:
        """Whether to use the pod's own account, as kubectl does in a pod without a kubeconfig."""
        return is_in_pod() and self._context is None and not has_config(self._files)

    @property
    def _named_file(self) -> list[str]:
        return ["--kubeconfig", self.kubeconfig] if self.kubeconfig else []

    @functools.cached_property
    def kubectl(self) -> str:
        """The kubectl command for this cluster."""
        words = ["kubectl", *self._named_file]
        if self._context and self._context != self._current:
            words += ["--context", self._context]
        return shlex.join(words)

    @property
    def kubectl_there(self) -> str:
        """``kubectl`` with the namespace."""
        return f"{self.kubectl} -n {self.namespace}"

    @functools.cached_property
    def namespace(self) -> str:
        """The namespace given, else the context's own, else ``default``."""
        if self._namespace:
            return self._namespace
        if not self._in_cluster:
            contexts = [entry.value for entry in self._config.get("contexts") or ()]
            named = [entry for entry in contexts if entry["name"] == self.context]
            return str(named[0]["context"].get("namespace") or "default") if named else "default"
        with contextlib.suppress(OSError):
            return NAMESPACE_FILE.read_text().strip() or "default"
        return "default"

    @property
    def context(self) -> str:
        """The context's name; ``IN_CLUSTER`` inside of a pod."""
        return IN_CLUSTER if self._in_cluster else (self._context or self._current)

    @property
    def skips_verification(self) -> bool:
        """Whether the context tells clients not to verify the server's certificate."""
        return not self._client.configuration.verify_ssl

    @property
    def _current(self) -> str:
        return str(self._config.get("current-context") or "none")

    @property
    def _config(self) -> Object:
        """The kubeconfig; empty if it cannot be read."""
        _, config = official_client()
        with contextlib.suppress(config.ConfigException, OSError, *MALFORMED):
            # The client's own list of contexts is empty if the current one does not exist.
            merged = config.kube_config.KubeConfigMerger(self._files).config
            kubeconfig: Object = merged.value if merged is not None else {}
            return kubeconfig
        return {}

    def read_identity(self) -> dict[str, str]:
        """What tells this cluster from another with the same context name.

        The server's address, a digest of the authority that signs its certificate, and the uid of
        kube-system if this user may read that.
        """
        settings = self._client.configuration
        authority = Path(settings.ssl_ca_cert).read_bytes() if settings.ssl_ca_cert else b""
        identity = {
            "server": settings.host,
            "authority": hashlib.sha256(authority).hexdigest()[:16],
        }
        with contextlib.suppress(ApiError):
            system = self.get("/api/v1/namespaces/kube-system")
            identity |= {"uid": system["metadata"]["uid"]} if system else {}
        return identity

    @contextlib.contextmanager
    def answers_within(self, limit_s: float) -> Iterator[None]:
        """Gives this thread's requests in the block ``limit_s`` seconds in all.

        The context's login command does not count.
        """
        assert self._client is not None, "it has logged in by now"
        earlier = getattr(self._of_thread, "ends_at", math.inf)
        self._of_thread.ends_at = min(earlier, time.monotonic() + limit_s)
        try:
            yield
        finally:
            self._of_thread.ends_at = earlier

    # -- objects ---------------------------------------------------------------------------------

    def read_version(self) -> str:
        """The server's version, such as ``v1.31.2``; the cheapest question that needs no rights."""
        return str(self._call("GET", "/version")["gitVersion"])

    def create(self, item: Object, *, dry_run: bool = False) -> Object:
        """Creates an object; ``dry_run`` has the server admit it and forget it.

        Returns the object as the server keeps it. ``ApiError`` with status 409 if it is there.
        """
        place, query = ObjectPlace.of(item), (DRY_RUN if dry_run else {}) | WRITTEN
        return self._call("POST", self._path(place, named=False), query, item, place=place)

    def apply(self, item: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: creates the object, or changes it to ``item``. Idempotent.

        It takes over fields that others have set (``force``).
        """
        place = ObjectPlace.of(item)
        query = (DRY_RUN if dry_run else {}) | WRITTEN | {"force": "true"}
        content = "application/apply-patch+yaml"
        return self._call("PATCH", self._path(place), query, item, content=content, place=place)

    def read_object(self, place: ObjectPlace) -> Object | None:
        """An object; None if there is none of that name."""
        return self.get(self._path(place), place)

    def merge(self, place: ObjectPlace, patch: Object) -> Object:
        """Changes some fields of an object, which has to be there; lists are replaced whole."""
        content = "application/merge-patch+json"
        return self._call("PATCH", self._path(place), {}, patch, content=content, place=place)

    def delete(self, place: ObjectPlace) -> None:
        """Deletes an object and, in the background, what it owns. Gone already is no error."""
        body = {"propagationPolicy": "Background"}
        try:
            self._call("DELETE", self._path(place), {}, body, place=place)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def list_objects(
        self, api_version: str, kind: str, selector: str, *, fields: str = ""
    ) -> Object:
        """The namespace's objects of a kind, as the list that the server sends.

        Each item has its kind and version, which servers leave out in lists of built-in kinds.
        """
        place = ObjectPlace(api_version=api_version, kind=kind, name="")
        query = {"labelSelector": selector, **({"fieldSelector": fields} if fields else {})}
        answer = self._call("GET", self._path(place, named=False), query, place=place)
        answer["items"] = [
            {"apiVersion": api_version, "kind": kind} | item for item in answer["items"]
        ]
        return answer

    # -- what a diagnosis asks --------------------------------------------------------------------

    def get(self, path: str, place: ObjectPlace | None = None) -> Object | None:
        """What lies at a path of the API, such as ``/api/v1/nodes``; None if nothing does.

        ``place`` is what the path leads to, for the error of a kind that the server does not know.
        """
        try:
            return self._call("GET", path, place=place)
        except ApiError as error:
            if error.status == NOT_FOUND and not error.is_kind_missing:
                return None
            raise

    def may(self, verb: str, resource: str) -> bool:
        """Whether this user has a right in the namespace, as on ``pods/log`` or ``jobs.batch``."""
        name, _, group = resource.partition(".")
        kinds, _, inner = name.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group}
        attributes |= {"resource": kinds, **({"subresource": inner} if inner else {})}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._call("POST", path, {}, review)["status"].get("allowed"))

    # -- streams ---------------------------------------------------------------------------------

    def watch_pods(self, selector: str, version: str) -> Iterator[Object]:
        """Events of pods from a resource version on, ``OPENED`` first, until the watch ends.

        Raises ``ApiError`` with status 410 if the version is too old, ``TargetError`` if the
        connection breaks.
        """
        query = {
            "labelSelector": selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        place = ObjectPlace(api_version="v1", kind="Pod", name="")
        rest = b""
        with self._open(self._path(place, named=False), query, "watch") as chunks:
            yield {"type": OPENED, "object": {"metadata": {}}}
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for event in (json.loads(line) for line in lines if line.strip()):
                    if event["type"] == "ERROR":
                        status = event["object"]
                        what = f"the watch ended: {status.get('message')}"
                        raise ApiError(what, status=int(status.get("code", 500)))
                    yield event

    def read_log(self, pod: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """A container's log in chunks, as ``query`` asks (``follow``, ``sinceTime``, ...)."""
        path = f"{self._path(ObjectPlace(api_version='v1', kind='Pod', name=pod))}/log"
        with self._open(path, query, "read a log") as chunks:
            yield from chunks

    def execute(self, pod: str, container: str, argv: Sequence[str]) -> str:
        """Runs a program without input; returns its stdout. Raises ``TargetError`` if it fails.

        Blocks until it ends, for ``REQUEST_LIMIT_S`` at most.
        """
        client, _ = official_client()
        from kubernetes.stream import stream
        from websocket import WebSocketException

        # A client of its own: while it asks, ``stream`` changes how its client sends.
        core = client.CoreV1Api(self._open_client())
        call, words = core.connect_get_namespaced_pod_exec, {"command": list(argv)}
        streams = {"stdin": False, "stdout": True, "stderr": True, "tty": False}
        with api_errors(f"start a program in {container} of pod {pod}", self):
            try:
                talk = stream(
                    call, pod, self.namespace, container=container, _preload_content=False,
                    **words, **streams,
                )  # fmt: skip
            except client.ApiException as error:
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                # The server's answer, with all its headers, follows the status.
                raise OSError(str(error.reason).partition(" -+-+- ")[0]) from error
            try:
                talk.sock.settimeout(REQUEST_LIMIT_S)
                talk.run_forever(timeout=REQUEST_LIMIT_S)
                if talk.returncode != 0:
                    errors = talk.read_stderr().strip() or "it printed no error"
                    raise TargetError(f"a program in {container} of pod {pod} failed: {errors}")
                return str(talk.read_stdout())
            except (WebSocketException, LookupError, TypeError) as error:
                raise OSError(str(error)) from error
            finally:
                # At once, without a closing message: a server that hangs would not read it.
                talk.sock.shutdown()

    @contextlib.contextmanager
    def _open(self, path: str, query: Mapping[str, str], doing: str) -> Iterator[Iterator[bytes]]:
        """A stream of bytes, which is closed at the end."""
        with api_errors(doing, self):
            response = self._request("GET", path, query, {"Accept": "*/*"}, STREAM_SILENCE_S)
            try:
                yield response.stream(64 * 1024, decode_content=True)
            finally:
                response.close()

    def _path(self, place: ObjectPlace, *, named: bool = True) -> str:
        root = "/apis" if "/" in place.api_version else "/api"
        path = f"{root}/{place.api_version}/namespaces/{self.namespace}/{plural(place.kind)}"
        return f"{path}/{place.name}" if named else path

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        content: str = "application/json",
        place: ObjectPlace | None = None,
    ) -> Object:
        doing = f"{method.lower()} {place.kind} {place.name}" if place else f"{method} {path}"
        headers = {"Accept": "application/json", "Content-Type": content}
        with api_errors(doing.strip(), self, place):
            response = self._request(method, path, query or {}, headers, REQUEST_LIMIT_S, body)
            for value in response.headers.getlist("Warning"):
                text = _parse_warning(value)
                if text not in self.warnings:
                    self.warnings.append(text)
            answer: Object = json.loads(response.data)
            return answer

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        silence_s: float,
        body: Object | None = None,
    ) -> Any:
        """Sends a request; ``silence_s`` is how long its response may bring nothing."""
        ends_at = getattr(self._of_thread, "ends_at", math.inf)
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it has taken too long")
        return self._client.call_api(
            path,
            method,
            ends_at=ends_at,
            query_params=list(query.items()),
            header_params=dict(headers),
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            # A connection is tried four times.
            _request_timeout=(min(REQUEST_LIMIT_S, left_s) / 4, min(silence_s, left_s)),
        )


def _parse_warning(value: str) -> str:
    """The text of a Warning header (RFC 7234): a code, an agent, and the text in quotes."""
    _, _, quoted = value.partition('"')
    text = quoted.rpartition('"')[0] or value
    return text.replace('\\"', '"').replace("\\\\", "\\")
