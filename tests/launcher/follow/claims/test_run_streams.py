"""Whole runs by what goes where: the workers' stdout to stdout, all other words to stderr."""

import shlex
import signal
import subprocess
import time

from tests.launcher.runner import PREFIX, Runner
from tests.programs import run_program
from tests.waiting import wait_until

TALKING = """
import os, sys
rank = os.environ["RANK"]
print("out of", rank, flush=True)
print("err of", rank, file=sys.stderr, flush=True)
"""
TWO = ("run", "job.yaml", "--on", "local", "--nproc-per-node", "2")
MUCH = """
import os
text = "x" * 80
for number in range({lines}):
    print(f"line {{number}} {{text}}")
"""
IN_PIECES = """
for _ in range(67):
    os.write(1, b"x" * 4000)
os.write(1, bytes([255]))
"""
"""One long line without an end, which is no UTF-8."""


def in_shell(launcher: Runner, line: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """``line`` in bash, as typed; ``RUN`` in it is the launcher's command."""
    typed = line.replace("RUN", shlex.join(launcher.argv(*argv)))
    return run_program(
        ["bash", "-o", "pipefail", "-c", typed], cwd=launcher.folder, env=launcher.env, timeout=150
    )


def test_workers_stdout_goes_to_stdout_and_everything_else_to_stderr(launcher):
    launcher.write(TALKING)
    done = launcher.well(*TWO)
    assert sorted(done.stdout.splitlines()) == ["[0/0] out of 0", "[0/1] out of 1"]
    lines = done.stderr.splitlines()
    assert {"[0/0] err of 0", "[0/1] err of 1"} <= set(lines)
    assert lines[0].startswith("launcher: running on")
    assert any(": SUCCEEDED on " in line for line in lines)
    assert "\x1b" not in done.stdout + done.stderr
    shown = launcher("logs")
    assert sorted(shown.stdout.splitlines()) == ["[0/0] out of 0", "[0/1] out of 1"]
    assert sorted(shown.stderr.splitlines()) == ["[0/0] err of 0", "[0/1] err of 1"]


def test_what_a_worker_that_is_alone_prints_reaches_a_file_byte_for_byte(launcher):
    launcher.write("print('10%', end='\\r'); print('20%', end='\\r')\n" + TALKING + IN_PIECES)
    done = subprocess.run(
        launcher.argv("run", "job.yaml", "--on", "local"),
        cwd=launcher.folder,
        env=launcher.env,
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert done.stdout == b"10%\r20%\rout of 0\n" + b"x" * 268_000 + b"\xff"
    assert b"err of 0" in done.stderr.splitlines()


def test_much_output_comes_whole_and_in_order_whatever_the_reader_takes_its_time_for(launcher):
    lines = 100_000
    launcher.write(MUCH.format(lines=lines))
    argv = launcher.argv(*TWO)
    process = subprocess.Popen(
        argv, cwd=launcher.folder, env=launcher.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    data = b""
    while chunk := process.stdout.read1(1 << 20):
        data += chunk
        if len(data) < 4 << 20:  # slower than the workers write, and then as fast as it can
            time.sleep(0.01)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr.decode()
    for rank in ("0", "1"):
        own = [line for line in data.decode().splitlines() if line.startswith(f"[0/{rank}] ")]
        assert own == [f"[0/{rank}] line {n} {'x' * 80}" for n in range(lines)]
    assert len(data.splitlines()) == 2 * lines


STUBBORN = """
import os, signal, time
for ignored in (signal.SIGTERM, signal.SIGINT):
    signal.signal(ignored, signal.SIG_IGN)
open(os.path.join(os.environ["RUN_DIR"], "up-" + os.environ["RANK"]), "w").close()
while True:
    print("on", flush=True)
    time.sleep(0.05)
"""


def test_the_first_ctrl_c_says_that_a_second_one_ends_the_run_at_once(launcher):
    launcher.write(STUBBORN)
    process = launcher.start("run", "job.yaml", "--on", "local")
    assert process.stderr is not None
    wait_until((launcher.folder / "runs/latest/up-0").exists)
    process.send_signal(signal.SIGINT)
    said = next(line for line in process.stderr if b"stopping" in line)
    fix = b"stopping (interrupted), at most 10 s; Ctrl-C again ends it at once"
    assert fix in said
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - began < 8, "less than the grace"
    assert process.returncode == 130


def test_both_streams_of_two_nodes_into_one_pipe_keep_their_order(launcher):
    launcher.write(TALKING)
    done = in_shell(launcher, "RUN 2>&1 | cat", "run", "job.yaml", "--on", "local", "--nnodes", "2")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("launcher: running on")
    summary = next(n for n, line in enumerate(lines) if ": SUCCEEDED on " in line)
    for rank in ("0", "1"):
        assert lines.index(f"[{rank}/{rank}] out of {rank}") < summary
        assert lines.index(f"[{rank}/{rank}] err of {rank}") < summary


SAVES = """
import json, os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
node = pathlib.Path(os.environ["LAUNCHER_NODE_DIR"])
(node / "stop-ready").touch()
pathlib.Path(os.environ["RUN_DIR"], "up-0").touch()
while not (node / "stop-request").exists():
    time.sleep(0.05)
print("saving the last one", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
(node / "stop-ack").write_text(json.dumps({"step": 7, "checkpoint": "c"}))
os._exit(143)
"""


def test_a_run_that_stops_shows_what_is_printed_and_saved_meanwhile_and_names_what_is_there(
    launcher,
):
    launcher.write(SAVES, PREFIX.replace("stop_grace_s: 10", "stop_grace_s: 60"))
    process = launcher.start("run", "job.yaml", "--on", "local")
    assert process.stdout is not None
    assert process.stderr is not None
    wait_until((launcher.folder / "runs/latest/up-0").exists)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"saving the last one\n"
    said = next(line for line in process.stderr if b"still stopping" in line)
    assert b"s of at most 60 s: the last checkpoint is being saved" in said
    assert process.poll() is None
    (launcher.folder / "go").touch()
    summary = process.communicate(timeout=60)[1].decode()
    assert "outcome.json" in summary
    assert "  logs  " in summary
    assert "checkpoints" not in summary, "its folder is empty"
