"""``notify`` of a job: who is told of its end and of restarts, and what holds nothing up."""

import json
from pathlib import Path

from launcher.api.notify import TOO_LONG
from tests.launcher.api.claims.test_notify import FAILS_TWICE, run
from tests.launcher.runner import Runner


def test_a_command_is_told_of_a_failure_alone_where_that_is_asked(tmp_path):
    runner = Runner(tmp_path)
    notify = {"command": 'echo "$NOTICE_TEXT" >> told', "when": "failure"}
    run(runner, "print('well')", notify)
    assert not (tmp_path / "told").exists()
    run(runner, "raise ValueError('loss is nan')", notify)
    assert "failed (training-failed); nan-loss" in (tmp_path / "told").read_text()


def test_who_fails_is_told_and_the_run_ends_as_it_did(tmp_path):
    runner = Runner(tmp_path)
    nobody = "http://127.0.0.1:0/hook"
    done = run(runner, "print('well')", {"webhook": nobody, "command": "echo no bot; exit 3"})
    assert done.returncode == 0
    assert "notify.command failed: exit code 3: no bot" in done.stderr
    assert "notify.webhook failed: " in done.stderr
    assert "SUCCEEDED" in done.stderr
    refused = run(runner, "", {"when": "end"})
    assert (refused.returncode, "notify.command" in refused.stderr) == (2, True)


def test_a_run_whose_notices_hang_ends_as_it_did_and_tells_them(tmp_path):
    """The first hangs while the training goes on, the last once the run has its outcome."""
    runner = Runner(tmp_path)
    hangs = "echo $$ >> pids; cp runs/latest/outcome.json seen.json; sleep 1000 & sleep 1001"
    done = run(runner, FAILS_TWICE, {"command": hangs, "restarts": 1}, "max_restarts: 3\n")
    assert done.returncode == 0
    assert done.stderr.count(f"notify.command failed: {TOO_LONG}") == 2
    assert "SUCCEEDED" in done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == runner.outcome
    pids = (tmp_path / "pids").read_text().split()
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []
