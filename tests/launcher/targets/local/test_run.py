"""Whole runs on local processes: real torchrun, real workers, real signals."""

import os
import pty
import signal
import sys

import pytest

from launcher.targets.local.target import find_agents
from tests.launcher.runner import PREFIX, WAITING, Runner, hear_hangups
from tests.programs import run_program
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


def test_output_is_whole_lines_whatever_bytes_a_worker_writes(launcher):
    launcher.write(BYTES)
    done = launcher.well("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    lines = done.stdout.splitlines()
    for prefix in ("[0/0] ", "[0/1] "):
        assert f"{prefix}half\\xff a line made whole" in lines
        assert f"{prefix}café end" in lines
        assert f"{prefix}100%" in done.stderr.splitlines()
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("signum", "code", "reason"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stop-requested")],
)
def test_an_interrupted_launcher_leaves_nothing(launcher, signum, code, reason):
    launcher.write(WAITING)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
    wait_until(lambda: is_up(launcher) and is_up(launcher, 1))
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert launcher.outcome["cause"] == reason
    assert launcher.processes() == []


def test_a_launcher_that_is_interrupted_while_its_nodes_begin_leaves_nothing(launcher):
    launcher.write(WAITING)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "2")
    wait_until(lambda: len(find_agents(tuple(launcher.processes()))) == 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert not is_up(launcher)
    assert launcher.processes() == []


@pytest.mark.parametrize("limit_kib", [500_000, 630_000])
def test_an_address_space_that_is_too_small_ends_the_run_at_its_first_start(launcher, limit_kib):
    """For torch itself, or for the threads of the agent beside it."""
    launcher.write(WAITING)
    limited = ("sh", "-c", f'ulimit -v {limit_kib}; exec "$@"', "sh")
    command = (*limited, *launcher.argv("run", "job.yaml", "--on", "local"))
    done = run_program(command, cwd=launcher.folder, env=launcher.env, timeout=launcher.limit_s)
    assert (done.returncode, launcher.outcome["attempts"]) == (2, 1), done.stderr
    assert "host-out-of-memory" in (why := done.stderr.splitlines()[-1])
    assert "fix: ulimit -v unlimited there" in why


def test_a_secret_reaches_the_workers_and_nothing_else(launcher):
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


def test_closing_the_terminal_ends_the_run_and_leaves_nothing(launcher):
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
    assert launcher.outcome["cause"] == "interrupted"
    assert launcher.processes() == []
