"""The agent of a script begins while its run is planned: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.targets import proc
from launcher.targets.local.early import PROGRAM, start_early
from tests.launcher.runner import ROOT, WAITING, Runner, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")

TELLS = """
import json, os, pathlib, sys
pid, lines = os.getppid(), []
while pid > 1:
    lines.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text())
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
began_early = any("early_program.py" in line for line in lines)
print(json.dumps([began_early, dict(os.environ), sys.path, sys.argv, os.getcwd(),
    "torch" in sys.modules, os.getsid(0) == os.getpid(), sorted(os.listdir("/proc/self/fd"))]))
"""
RUN = ("run", "train.py", "--on", "local", "--nproc-per-node", "1")
WAITS = """
import os, sys, time
from pathlib import Path
from launcher.targets.local.early import EarlyAgent
early = EarlyAgent(Path(sys.argv[1]), "tiny-1")
print("started", flush=True)
time.sleep(300)
"""
THREADED = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"


def early_in(folder: Path) -> list[int]:
    """Early processes, and what they became, of any run below a folder."""
    return [
        pid
        for pids in proc.find_runs().values()
        for pid in pids
        if (proc.variable_of(pid, protocol.RUN_DIR) or "").startswith(str(folder))
    ]


def test_a_script_runs_in_the_process_that_began_while_it_was_planned(launcher: Runner) -> None:
    launcher.write(TELLS)
    found = []
    # The second is told a key of the job, so that its agent begins when the plan is made.
    for more in ((), ("--set", "start=fresh")):
        done = launcher(*RUN, *more)
        assert done.returncode == 0, done.stderr
        rendezvous = json.loads((launcher.folder / "runs/latest/plan.json").read_text())
        node = rendezvous["nodes"][0]["rendezvous"]
        text = done.stdout.replace(launcher.outcome["run_id"], "RUN")
        found.append(text.replace(str(node["endpoint_port"]), "PORT"))
    early, late = (json.loads(text) for text in found)
    assert (early.pop(0), late.pop(0)) == (True, False)
    of_one = ("MASTER_PORT", protocol.HEARTBEAT, protocol.ASKED_FILE)
    for name in (*of_one, "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        assert (name in early[0]) == (name in late[0])
        early[0].pop(name, None), late[0].pop(name, None)
    assert early == late


def test_it_ends_with_a_planning_that_fails(launcher: Runner) -> None:
    launcher.write(TELLS)
    done = launcher(*RUN, "--nnodes", "none")
    assert done.returncode == 2
    assert launcher.run_ids() == []
    assert early_in(launcher.folder) == []


def test_it_ends_with_its_launcher_however_that_dies(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WAITS, str(tmp_path)]
    parent = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    wait_until(lambda: early_in(tmp_path))
    parent.kill()
    parent.communicate()
    wait_until(lambda: not early_in(tmp_path), limit_s=20)


def test_a_stop_reaches_it_before_it_has_read_its_plan(launcher: Runner) -> None:
    launcher.write(WAITING)
    process = launcher.start(*RUN)
    try:
        wait_until(lambda: [*launcher.folder.glob("runs/*-*/nodes/0/0/node-plan.json")])
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr.decode()
    assert launcher.outcome["reason"] == "interrupted"
    assert early_in(launcher.folder) == []


@pytest.mark.parametrize("torch", ["raise ImportError", THREADED])
def test_where_it_cannot_fork_it_starts_as_any_other_agent(tmp_path: Path, torch: str) -> None:
    for name in ("torch", "torch/distributed", "torch/distributed/launcher"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(torch if name == "torch" else "")
    (tmp_path / "torch/distributed/launcher/api.py").write_text("")
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "there").mkdir()
    pid = proc.start_early(
        (sys.executable, PROGRAM), env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    order = {
        "argv": [str(tmp_path / "tells.py"), "word"],
        "env": {"OF_PLAN": "1"},
        "cwd": str(tmp_path / "there"),
        "console": str(tmp_path / "console"),
    }
    assert proc.tell(pid, json.dumps(order).encode())
    wait_until(lambda: proc.poll(pid) is not None)
    assert proc.poll(pid) == 0
    _, env, _, argv, cwd, *_ = json.loads((tmp_path / "console").read_text())
    assert (env["OF_PLAN"], argv, cwd) == ("1", order["argv"], order["cwd"])


@pytest.mark.parametrize(
    "given",
    [{"job": "job.yaml"}, {"job": None}, {"set": ["start=fork"]}, {"detach": True}],
    ids=str,
)
def test_nothing_begins_early_that_the_job_might_want_otherwise(
    tmp_path: Path, given: dict[str, object]
) -> None:
    typed = {"job": "train.py", "module": None, "set": [], "detach": False}
    assert start_early(tmp_path, Namespace(**{**typed, **given})) is None
