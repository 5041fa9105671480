"""``notify`` of a job: who is told of its end and of restarts, and what holds nothing up."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from launcher.api.notify import TOO_LONG, send
from launcher.plan.launch_plan import Notify
from tests.launcher.runner import Runner

FAILS_TWICE = """
import os, pathlib, time
tries = pathlib.Path("tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) < 3:
    raise ValueError("not yet")
time.sleep(6)
"""


class Hook:
    """A webhook; ``answers`` is False for one that takes what it gets and says nothing."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.answers = threading.Event()
        told, answers = self.told, self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answers.wait()  # Ended by the fixture.
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.answers.set()
    hook.server.shutdown()


def run(runner: Runner, script: str, notify: dict[str, Any], more: str = "") -> Any:
    job = f"name: tiny\nnproc_per_node: 1\nnotify: {json.dumps(notify)}\n{more}"
    runner.write(script, job)
    return runner("run", "job.yaml", "--on", "local")


def test_restarts_and_the_end_are_told_to_a_webhook(tmp_path, hook):
    hook.answers.set()
    notify = {"webhook": hook.url, "restarts": 2}
    done = run(Runner(tmp_path), FAILS_TWICE, notify, "max_restarts: 3\n")
    assert done.returncode == 0, done.stderr
    restarts, end = hook.told
    assert (restarts["event"], sum(restarts["restarts"].values())) == ("restarts", 2)
    assert (end["event"], end["state"], end["exit_code"]) == ("end", "succeeded", 0)
    assert end["text"].startswith(f"{end['run_id']}: succeeded (completed)")


def test_a_webhook_that_hangs_is_given_up(monkeypatch, hook, make_plan):
    monkeypatch.setattr("launcher.api.notify.LIMIT_S", 1)
    said: list[str] = []
    send(Notify(webhook=hook.url), make_plan(), said.append, "end", "over")
    assert said == [f"notify.webhook failed: {TOO_LONG}"]
    assert hook.told[0]["text"].endswith(": over")
