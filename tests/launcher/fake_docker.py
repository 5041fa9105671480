"""A small server that speaks the Docker engine's wire format for the calls that the launcher makes.

No program runs: tests say how containers end and what they print. No default is filled in.
"""

import json
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.waiting import wait_until


class FakeDocker(ThreadingHTTPServer):
    """What it holds, by id or name; ``asked`` are the requests that change something."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"tcp://127.0.0.1:{self.server_port}"
        self.info: dict[str, Any] = {"ID": "here", "NCPU": 8}
        self.images: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self.networks: dict[str, Any] = {}
        self.logs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.refused: dict[str, tuple[int, str]] = {}
        """By method and path: what is always refused, with which status and message."""

    def end(self, name: str, **how: object) -> None:
        """Has a container end so."""
        self.containers[name]["State"] |= {"Status": "exited", **how}

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if method != "GET":
            self.asked.append(f"{method} {path}{''.join(f' {k}={v[0]}' for k, v in query.items())}")
        if refusal := self.refused.get(f"{method} {path}"):
            return refusal
        if path == "info":
            return 200, self.info
        if path == "images":
            return 200, [{"RepoTags": [name]} for name in self.images]
        kind, _, name = path.partition("/")
        name, _, verb = (name, "", "") if kind == "images" else name.partition("/")
        held = getattr(self, kind)
        if not name:
            label = json.loads(query["filters"][0])["label"][0]
            found = [one for one in held.values() if label in _label_filters(one)]
            shown = [one for one in found if query.get("all", ["1"]) == ["1"] or _runs(one)]
            return 200, [{**one, "State": one["State"].get("Status")} for one in shown]
        if name == "create":
            name = query["name"][0] if query else body["Name"]
            if name in held:
                return 409, f"Conflict. The name {name} is already in use"
            state = {"Status": "created", "ExitCode": 0, "OOMKilled": False, "Error": ""}
            held[name] = {"Id": name, "Labels": body["Labels"], "State": state, "Config": body}
            return 201, {"Id": name}
        if name not in held:
            return 404, f"No such {kind[:-1]}: {name}"
        if method == "DELETE":
            del held[name]
        elif verb == "logs":
            if query["follow"] == ["1"]:
                wait_until(lambda: not _runs(held.get(name)))
            tail = query["tail"][0]
            lines = self.logs.get(name, b"").splitlines(keepends=True)
            return 200, b"".join(lines[-int(tail) :] if tail.isdigit() else lines)
        elif method == "POST":
            ends = {"start": "running", "stop": "exited", "kill": "exited"}
            held[name]["State"]["Status"] = ends[verb]
        return 200, held.get(name, {})


def _label_filters(held: Any) -> list[str]:
    return [*held["Labels"], *(f"{name}={value}" for name, value in held["Labels"].items())]


def _runs(held: Any) -> bool:
    return bool(held) and held["State"]["Status"] == "running"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # An answer is sent in one piece: the rest would wait for the client's word.
    server: FakeDocker

    def _answer(self) -> None:
        url = urlparse(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        status, data = 200, {"ApiVersion": "1.41"}
        if url.path != "/version":
            path = url.path.split("/", 2)[2].removesuffix("/json")
            status, data = self.server.answer(self.command, path, parse_qs(url.query), body)
        if isinstance(data, bytes):
            sent = struct.pack(">BxxxL", 1, len(data)) + data
        else:
            sent = json.dumps({"message": data} if isinstance(data, str) else data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the server's names

    def log_message(self, *_: object) -> None:
        pass
