"""Whole runs on local processes: real torchrun, real workers, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import psutil
import pytest

from launcher.targets.local.target import find_agents
from tests.launcher.runner import PREFIX, ROOT, WAITING, Runner, hear_hangups
from tests.waiting import wait_until

BYTES = """
import os, sys
out = sys.stdout.buffer
out.write(b"half\\xff a line "); out.flush()
out.write(b"made whole\\n"); out.flush()
for percent in range(0, 101, 10):
    sys.stderr.write(f"\\r{percent}%"); sys.stderr.flush()
sys.stderr.write("\\n")
out.write("caf\\u00e9 end".encode()); out.flush()
"""


def is_up(launcher: Runner, rank: int = 0) -> bool:
    return (launcher.folder / f"runs/latest/up-{rank}").exists()


def test_output_is_whole_lines_whatever_bytes_a_worker_writes(launcher: Runner) -> None:
    launcher.write(BYTES)
    done = launcher("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for prefix in ("[0/0] ", "[0/1] "):
        assert f"{prefix}half\\xff a line made whole" in lines
        assert f"{prefix}café end" in lines
        assert f"{prefix}100%" in done.stderr.splitlines()
    assert len(lines) == 4


def test_a_failing_script_is_exit_1_and_the_first_rank_is_named(launcher: Runner) -> None:
    launcher.write((ROOT / "tests/examples/failing.py").read_text())
    done = launcher("run", "job.yaml", "--on", "local", "--nnodes", "2")
    assert done.returncode == 1, done.stderr
    failure = launcher.outcome["failure"]
    assert (failure["first"]["rank"], failure["first"]["node_index"]) == (1, 1)
    assert "first failure: rank 1 on node 1:" in done.stderr
    assert "failed after it: rank 0 on node 0" in done.stderr
    assert any("raise" in line for line in failure["first"]["log_tail"])


def test_what_is_missing_is_told_before_anything_starts(launcher: Runner) -> None:
    launcher.write("", PREFIX + "secrets: [NO_SUCH_TOKEN]\n")
    done = launcher("run", "job.yaml", "--on", "local")
    assert done.returncode == 2
    assert "NO_SUCH_TOKEN" in done.stderr
    launcher.write("")
    (launcher.folder / "train.py").unlink()
    done = launcher("run", "job.yaml", "--on", "local")
    assert done.returncode == 2
    assert "command: found train.py; no such file in" in done.stderr
    assert launcher.run_ids() == []


@pytest.mark.parametrize(
    ("signum", "code", "reason"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stop-requested")],
)
def test_an_interrupted_launcher_leaves_nothing(
    launcher: Runner, signum: signal.Signals, code: int, reason: str
) -> None:
    launcher.write(WAITING)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    wait_until(lambda: is_up(launcher) and is_up(launcher, 1))
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert launcher.outcome["reason"] == reason
    assert launcher.processes() == []


def test_a_launcher_that_is_interrupted_while_its_nodes_begin_leaves_nothing(
    launcher: Runner,
) -> None:
    launcher.write(WAITING)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "2")
    wait_until(lambda: len(find_agents(tuple(launcher.processes()))) == 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert not is_up(launcher)
    assert launcher.processes() == []


def test_under_nohup_a_run_goes_on_without_its_terminal_and_without_a_reader(
    launcher: Runner,
) -> None:
    launcher.write(WAITING.replace("300", "3"))
    process = subprocess.Popen(
        ["nohup", *launcher.argv("run", "job.yaml", "--on", "local")],
        cwd=launcher.folder,
        env=launcher.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: is_up(launcher))
    assert process.stderr is not None
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert launcher.outcome["reason"] == "completed"


def test_a_detached_run_is_listed_followed_and_stopped_from_elsewhere(launcher: Runner) -> None:
    launcher.write(WAITING)
    done = launcher("run", "job.yaml", "--on", "local", "--detach")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    wait_until(lambda: is_up(launcher))
    # A damaged run folder does not hide the others.
    broken = launcher.folder / "runs" / "tiny-broken"
    broken.mkdir()
    (broken / "plan.json").write_text("{}")
    rows = json.loads(launcher("ps", "--all", "--json").stdout)
    assert {(r["run_id"], r["state"]) for r in rows} == {
        (run_id, "running"),
        ("tiny-broken", "unreadable"),
    }
    status = json.loads(launcher("status", run_id, "--json").stdout)
    assert (status["state"], status["outcome"]) == ("running", None)
    assert [node["state"] for node in status["nodes"]] == ["running"]
    assert psutil.pid_exists(status["launcher_pid"])
    assert launcher("logs", run_id).stdout == "[0/0] up\n"
    done = launcher("stop", run_id)
    assert (done.returncode, "stop-requested" in done.stderr) == (0, True)
    assert launcher.processes() == []
    status = json.loads(launcher("status", run_id, "--json").stdout)
    assert status["outcome"]["reason"] == "stop-requested"
    assert launcher("stop", run_id).returncode == 0


@pytest.mark.slow
def test_a_detached_run_ends_by_itself_and_logs_follow_it_to_its_end(launcher: Runner) -> None:
    launcher.write("import time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two')\n")
    run_id = launcher("run", "job.yaml", "--on", "local", "--detach").stdout.strip()
    assert launcher("logs", "--follow", run_id).stdout == "[0/0] one\n[0/0] two\n"
    assert launcher.outcome["state"] == "succeeded"


@pytest.mark.parametrize(
    "example",
    [
        "raw_ddp.py",
        "fabric.py",
        "trainer.py",
    ],
)
@pytest.mark.slow  # own_script/ runs such a script in every CI
def test_scripts_that_know_nothing_of_this_project_run(launcher: Runner, example: str) -> None:
    launcher.write((ROOT / "tests/examples" / example).read_text())
    done = launcher("run", "job.yaml", "--on", "local", "--nnodes", "2")
    assert done.returncode == 0, done.stderr
    assert "done world_size=2" in done.stdout


def test_a_secret_reaches_the_workers_and_nothing_else(launcher: Runner) -> None:
    launcher.write(
        "import os; print('length', len(os.environ['API_TOKEN']))\n",
        PREFIX + "secrets: [API_TOKEN]\n",
    )
    launcher.env["API_TOKEN"] = "hunter2-value"
    done = launcher("run", "job.yaml", "--on", "local")
    assert "length 13" in done.stdout
    written = [p for p in (launcher.folder / "runs").rglob("*") if p.is_file()]
    assert written
    assert not [p for p in written if b"hunter2-value" in p.read_bytes()]


def test_a_terminal_shows_one_progress_bar_and_whole_lines_of_the_others(launcher: Runner) -> None:
    launcher.write(
        "import os, sys, time\n"
        "for step in range(5):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        sys.stderr.write(f'\\rstep {step}/5')\n"
        "    else:\n"
        "        print(f'line {step}')\n"
        "    time.sleep(0.2)\n"
        "print('progress', os.environ['LAUNCHER_PROGRESS'])\n"
    )
    ours, theirs = pty.openpty()
    argv = launcher.argv("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    process = subprocess.Popen(
        argv, cwd=launcher.folder, env=launcher.env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that its last writer has gone
        while data := os.read(ours, 4096):
            shown += data
    assert process.wait(timeout=60) == 0, shown
    text = shown.decode()
    assert "\rstep 3/5" in text.replace("\x1b[K", "")
    assert "\x1b[33m[0/1]\x1b[0m line 4\r\n" in text
    assert "progress bar" in text


def test_closing_the_terminal_ends_the_run_and_leaves_nothing(launcher: Runner) -> None:
    launcher.write(WAITING)
    pid, terminal = pty.fork()
    if pid == 0:
        hear_hangups()
        os.chdir(launcher.folder)
        os.execve(sys.executable, launcher.argv("run", "job.yaml", "--on", "local"), launcher.env)
    wait_until(lambda: is_up(launcher))
    os.close(terminal)
    wait_until(lambda: (launcher.folder / "runs/latest/outcome.json").exists())
    os.waitpid(pid, 0)
    assert launcher.outcome["reason"] == "interrupted"
    assert launcher.processes() == []
