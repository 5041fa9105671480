"""``launcher why`` as a person types it, on real runs of local processes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from launcher.agent.stopping import SILENT_S
from launcher.api.why import read_named_run
from launcher.runs.folder import RunFolder
from launcher.verdict.cause import FailureCause
from launcher.verdict.verdict import decide_verdict
from tests.launcher.runner import PREFIX, WAITING, Runner
from tests.programs import run_program
from tests.waiting import wait_until

TWO = PREFIX.replace("nproc_per_node: 1", "nproc_per_node: 2")
LOCAL = ("run", "job.yaml", "--on", "local")
ONE_RAISES = """\
import os, time; os.environ["RANK"] == "0" and open("up", "w")
while os.environ["RANK"] == "1":
    if os.path.exists("up"): open("/data/nowhere/train.bin")
time.sleep(60)
"""
"""Rank 1, once rank 0 has begun."""


def last_line(text: str) -> str:
    return text.rstrip("\n").splitlines()[-1]


def test_the_last_line_of_a_failed_run_is_its_verdict(launcher: Runner) -> None:
    launcher.write(ONE_RAISES, TWO)
    done = launcher(*LOCAL)
    told = "missing-file (certain), rank 1 on node 0, train.py:3; fix: name a path that every node"
    told += " has, or mount it; launcher docs missing-file"
    assert last_line(done.stderr).startswith(f"  why          {told}; ")
    assert launcher.outcome["verdict"] == told
    assert told in launcher("status").stdout


def test_why_tells_the_rank_that_failed_first_and_what_fell_with_it(launcher: Runner) -> None:
    launcher.write(ONE_RAISES, TWO)
    launcher(*LOCAL)
    headline, where, fix, fell = launcher("why").stdout.splitlines()
    assert "missing-file, certain: FileNotFoundError: [Errno 2]" in headline
    assert where == "  where: rank 1 on node 0, train.py:3"
    assert fix.endswith("launcher docs missing-file")
    assert fell == "  failed after it: rank 0"
    # The traceback has a line that marks what failed.
    assert "rank-1/error.json:5: FileNotFoundError" in launcher("why", "--evidence").stdout


def test_a_killed_rank_is_likely_but_not_certainly_that(launcher: Runner) -> None:
    launcher.write("import os\nos.kill(os.getpid(), 9)\n")
    launcher(*LOCAL)
    told = json.loads(launcher("why", "--json").stdout)
    assert (told["cause"], told["certainty"], told["rank"]) == ("killed", "likely", 0)
    assert told["runbook"] == "launcher docs killed"
    assert told["reason"] == launcher.outcome["reason"]  # one word for both


WAITS_FOR_A_LOCK = """\
import datetime, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
lock = threading.Lock()
for step in range(100):
    optimizer.step()
    if step == 50 and dist.get_rank() == 1:
        lock.acquire()
        lock.acquire()
    dist.all_reduce(torch.ones(4))
"""


def test_of_a_hang_the_rank_is_named_that_the_others_wait_for(launcher: Runner) -> None:
    launcher.write(WAITS_FOR_A_LOCK, TWO)
    launcher(*LOCAL, "--set", "agent.hang_min_s=3", "--set", "agent.hang_max_s=4")
    headline, where, *_ = launcher("why").stdout.splitlines()
    assert "deadlock, likely: rank 1 stands at train.py:10; rank 0: all_reduce" in headline
    assert where == "  where: rank 1 on node 0, train.py:10"
    assert "rank 1 has not entered all_reduce" in launcher("why", "--evidence").stdout


STOPPED_WHILE = {
    "a barrier of rank 0 alone": (
        """\
import os, pathlib, queue, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pathlib.Path(f"up-{rank}").touch()
if rank == 0:
    dist.barrier()
queue.Queue().get()
""",
        "deadlock, likely: rank 1 stands at Queue.get <- train.py:7; rank 0: barrier <- train.py:6",
        "  where: rank 1 on node 0, train.py:7",
    ),
    "other collectives": (
        """\
import pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pathlib.Path(f"up-{rank}").touch()
if rank == 0:
    dist.recv(torch.ones(4), src=1)
dist.barrier()
""",
        "mismatched-collective, likely: rank 0 stands at recv <- train.py:6; rank 1: barrier",
        "  where: rank 0 on node 0, train.py:6",
    ),
    "a thread that never ends": (
        """\
import os, pathlib, threading
pathlib.Path("up-" + os.environ["RANK"]).touch()
threading.Thread(target=threading.Event().wait, name="loader").start()
""",
        "deadlock, likely: rank 0 has ended but for its thread loader",
        "",
    ),
    "a thread that raised": (
        """\
import os, pathlib, queue, threading
pathlib.Path("up-" + os.environ["RANK"]).touch()
full = queue.Queue()
def fill():
    raise KeyError("shard-1")
threading.Thread(target=fill, daemon=True).start()
full.get()
""",
        "script-error, likely: KeyError: 'shard-1'",
        "  where: rank 0 on node 0, train.py:5",
    ),
    "a computation": (
        """\
import os, pathlib, time
pathlib.Path("up-" + os.environ["RANK"]).touch()
while True: sum(range(100_000))
""",
        "stopped-by-user, likely: stop-requested",
        "",
    ),
}


def test_the_fix_of_an_import_names_what_lies_in_the_folder(launcher: Runner) -> None:
    package = launcher.folder / "src" / "toolkit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text("from . import layers\n")
    launcher.write("import toolkit.net\n")
    launcher(*LOCAL)
    said = launcher("why").stdout
    assert "missing-module, certain: ModuleNotFoundError: No module named 'toolkit'" in said
    assert "fix: --set env.PYTHONPATH=src, or pip install -e .;" in said
    launcher("run", "src/toolkit/net.py", "--on", "local", "--nproc-per-node", "1")
    said = launcher("why").stdout
    assert "wrong-argument, certain: ImportError: attempted relative import" in said
    assert "fix: from the folder above the package: -m toolkit.net;" in said


def test_what_a_side_thread_raised_is_not_why_its_process_ended_by_itself(
    launcher: Runner,
) -> None:
    launcher.write(
        """\
import sys, threading
def push(): raise RuntimeError("the tracker answered 503")
thread = threading.Thread(target=push)
thread.start()
thread.join()
print("accuracy is below the limit", file=sys.stderr)
sys.exit(3)
"""
    )
    launcher(*LOCAL)
    headline, where, *_ = launcher("why").stdout.splitlines()
    assert "script-error, likely: exit code 3: accuracy is below the limit" in headline
    assert where == "  where: rank 0 on node 0"


@pytest.mark.slow
@pytest.mark.parametrize("what", STOPPED_WHILE)
def test_of_a_hang_that_is_stopped_the_rank_is_named_too(launcher: Runner, what: str) -> None:
    script, told, where = STOPPED_WHILE[what]
    launcher.write(script, TWO)
    process = launcher.start(*LOCAL)
    up = [launcher.folder / f"up-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in up))
    silent_since = max(path.stat().st_mtime for path in up)
    wait_until(lambda: time.time() - silent_since > SILENT_S + 1)
    began = time.monotonic()
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 143, errors
    said = launcher("why").stdout
    assert told in said
    assert where in said
    # Of a pod only the console is left.
    for looks in launcher.folder.glob("runs/*/nodes/*/*/looks"):
        shutil.rmtree(looks)
    assert told in launcher("why").stdout
    is_hang = not told.startswith("stopped")
    assert ("  why  " in errors.decode() + output.decode()) is is_hang


def test_a_run_that_goes_on_is_told_to_and_a_part_of_its_folder_too(launcher: Runner) -> None:
    launcher.write(WAITING)
    launcher(*LOCAL, "--detach")
    run = launcher.folder / "runs" / launcher.run_ids()[0]
    wait_until(lambda: (run / "up-0").exists())
    told = launcher("why").stdout
    assert (
        told
        == f"{run.name} (running): no failure so far; launcher stacks tells where its ranks are\n"
    )
    launcher("stop")
    part = launcher.folder / "a part"
    (part / "nodes/0").mkdir(parents=True)
    (run / "nodes/0/0").rename(part / "nodes/0/0")
    assert "plan.json is not there" in launcher("why", "a part").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may become another user")
def test_of_a_run_of_another_user_that_goes_on_its_folder_tells() -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        launcher = Runner(Path(root))
        launcher.write(WAITING)
        launcher(*LOCAL, "--detach")
        run = RunFolder(launcher.folder / "runs" / launcher.run_ids()[0])
        wait_until(lambda: (run.path / "up-0").exists())
        os.seteuid(65534)
        try:
            told = decide_verdict(read_named_run(run))
        finally:
            os.seteuid(0)
        launcher("stop")
    assert (told.state, told.what[:7]) == ("running", "no fail")


def test_a_run_that_ended_well_has_no_verdict(launcher: Runner) -> None:
    launcher.write("print('done')\n")
    done = launcher(*LOCAL)
    assert "  why " not in done.stderr
    assert launcher("why").stdout.endswith("(succeeded): it ended well\n")


def test_a_log_on_stdin_is_judged_when_its_writer_ends(launcher: Runner) -> None:
    text = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    asked = launcher.argv("why", "-")
    done = run_program(asked, input=text, cwd=launcher.folder, check=True)
    assert done.stdout.startswith(f"stdin: {FailureCause.WRONG_ARCHITECTURE}, likely: RuntimeError")


def test_a_word_that_is_no_run_and_no_path_is_refused(launcher: Runner, tmp_path: Path) -> None:
    done = launcher("why", "nothing-here")
    assert done.returncode == 2
    assert "error: no run 'nothing-here'" in done.stderr
