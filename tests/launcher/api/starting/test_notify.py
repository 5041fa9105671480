"""``notify`` of a job: who is told of its end and of restarts, and what holds nothing up."""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from launcher.api.starting import notify
from launcher.api.starting.notify import notices, send
from launcher.contract.causes import Cause
from launcher.plan.launch_plan import Notify
from launcher.runs.failure import FailureReport
from tests.launcher.worker_ends import worker_end
from tests.waiting import wait_until

HANGS = "it took longer than 10 s"


class Hook(ThreadingHTTPServer):
    """A webhook, and what it was told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.server.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    yield hook
    hook.shutdown()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", []),
        ("echo fine >&2", []),
        ("echo a; echo no bot; exit 3", ["exit code 3: no bot"]),
        ("echo a; echo b >&2; exit 1", ["exit code 1: b"]),
        ("exit 1", ["exit code 1"]),
        ("sleep 99", [HANGS]),
        ("trap '' TERM; while :; do sleep 9; done", [HANGS]),
        ("a\0b", ["embedded null byte"]),
    ],
)
def test_a_command_that_fails_or_hangs_is_told_and_no_more(command, why, make_plan, monkeypatch):
    monkeypatch.setattr(notify, "LIMIT_S", 1)
    said: list[str] = []
    send(Notify(command=command), make_plan(), said.append, "end", "over")
    assert said == [f"notify.command failed: {line}" for line in why]


def test_a_webhook_gets_the_notice_and_is_given_up_where_it_hangs(hook, make_plan, monkeypatch):
    said: list[str] = []
    send(Notify(webhook=hook.url), make_plan(), said.append, "end", "over", state="failed")
    told = {"text": "digits-0a1b2c: over", "event": "end", "state": "failed"}
    assert hook.told == [{**told, "run_id": "digits-0a1b2c", "job": "digits", "target": "local"}]
    monkeypatch.setattr(notify, "LIMIT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = Notify(webhook=f"http://127.0.0.1:{silent.getsockname()[1]}")
        send(hangs, make_plan(), said.append, "end", "over")
        monkeypatch.setenv("PATH", "/nowhere")
        send(hangs, make_plan(), said.append, "end", "over")
    assert said[0] == f"notify.webhook failed: {HANGS}"
    assert said[1].startswith("notify.webhook failed: [Errno 2]")


END = ("state", "cause", "detail", "verdict", "exit_code", "duration_s", "restarts")
GOOD = dict(zip(END, ("succeeded", "completed", "", "", 0, 1.0, {}), strict=True))
HOT = "rank 1: exit code 1 (too hot)"
BAD = dict(zip(END, ("failed", "training-failed", HOT, "", 1, 1.0, {}), strict=True))


@pytest.mark.parametrize(
    ("when", "ended", "told"),
    [
        ("end", Cause.COMPLETED, ("succeeded (completed)", GOOD)),
        ("failure", Cause.COMPLETED, None),
        ("failure", Cause.TRAINING_FAILED, (f"failed (training-failed); {HOT}", BAD)),
        ("end", None, None),
    ],
)
def test_the_end_is_told_as_the_outcome_has_it(when, ended, told, make_run, tmp_path):
    run, plan = make_run(ended=ended)
    if ended is Cause.TRAINING_FAILED:
        failure = FailureReport(first=worker_end(1, "too hot"), collateral=(), console_tail=())
        run.write_outcome(replace(run.read_outcome(), failure=failure, verdict=""))
    command = f'printf "%s\\n" "$NOTICE_TEXT" "$NOTICE_JSON" > {tmp_path}/told'
    plan = replace(plan, notify=Notify(command=command, when=when))
    said: list[str] = []
    with notices(run, replace(plan, notify=None), said.append), notices(run, plan, said.append):
        pass
    assert said == []
    if told is None:
        assert not (tmp_path / "told").exists()
        return
    text, record = (tmp_path / "told").read_text().splitlines()
    assert text == f"{run.run_id}: {told[0]}"
    of_run = {"run_id": run.run_id, "job": "digits", "target": "local"}
    assert json.loads(record) == {"text": text, "event": "end", **of_run, **told[1]}


@pytest.mark.parametrize(("limit", "texts"), [(3, ["3 restarts"]), (4, []), (0, [])])
def test_restarts_are_told_once_when_there_are_as_many(limit, texts, make_run, monkeypatch):
    run, plan = make_run()
    for number in (0, 1):
        run.node_dir(0, number).mkdir(parents=True)
    looks: list[int] = []
    monkeypatch.setattr(notify, "LOOK_S", 0.01)
    monkeypatch.setattr(notify, "read_restarts", lambda _: looks.append(1) or {"exit": 2})
    sent: list[str] = []
    monkeypatch.setattr(notify, "send", lambda *words, restarts: sent.append(words[4]))
    with notices(run, replace(plan, notify=Notify(command="a", restarts=limit)), print):
        wait_until(lambda: sent or len(looks) > 3 or not limit)
    assert sent == [f"{text}; launcher report {run.run_id}" for text in texts]
    assert (len(looks) > 1) == (limit == 4)
