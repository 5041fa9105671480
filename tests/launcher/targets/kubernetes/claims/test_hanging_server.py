"""A server that accepts connections and never answers."""

import signal
import time
from collections.abc import Callable

import pytest

from launcher.contract.errors import ExitCode
from launcher.contract.typed import shown
from tests.launcher.cluster_run import PLAIN, ClusterRun, started

Start = Callable[..., ClusterRun]
Typed = Callable[..., tuple[int, str]]
LATE_S = 3.0
"""How late a busy machine may be."""


def test_ctrl_c_is_answered_at_once_though_the_server_hangs_and_the_grace_ends_the_tries(
    server, tmp_path
):
    process = started(tmp_path, f"stop_grace_s: 6\n{PLAIN}")
    server.until(lambda: server.asked("GET", "/pods"))
    server.hangs = True
    asked = len(server.asked("GET", "/jobs/digits"))
    server.until(lambda: len(server.asked("GET", "/jobs/digits")) > asked)
    process.send_signal(signal.SIGINT)
    at = time.monotonic()
    assert process.stderr is not None
    while "stopping (interrupted), at most 6 s" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    assert time.monotonic() - at < 1 + LATE_S
    _, text = process.communicate(timeout=60)
    assert time.monotonic() - at < 6 + 2 + LATE_S
    assert process.returncode == ExitCode.TARGET_UNREACHABLE, text
    assert f"error: STILL RUNNING: {text.partition('RUNNING: ')[2].partition(':')[0]}: " in text
    assert "fix: kubectl delete job digits -n team" in text


def test_a_submission_to_a_server_that_hangs_is_interrupted_at_once(server, tmp_path):
    server.hangs_at = "POST"
    process = started(tmp_path, PLAIN)
    server.until(lambda: server.asked("POST", "/"))
    process.send_signal(signal.SIGINT)
    at = time.monotonic()
    _, text = process.communicate(timeout=60)
    assert time.monotonic() - at < 3 + LATE_S, text
    assert not server.objects


@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("ps",)])
def test_who_looks_at_a_run_is_answered_soon_though_the_server_hangs(words, server, run, typed):
    server.hangs = True
    at = time.monotonic()
    code, said = typed(*words, *([run.run_id] if words[0] == "status" else []))
    assert time.monotonic() - at < 5 + LATE_S
    assert run.run_id in said
    assert "unknown" in said.lower()
    if words[0] == "status":
        assert code == ExitCode.TARGET_UNREACHABLE
        assert "error: the cluster of context fake does not answer: Read timed out\n" in said
        assert (str(run.path) if "--json" in words else shown(run.path)) in said
    assert run.read_outcome() is None
