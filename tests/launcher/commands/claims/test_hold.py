"""``hold``, ``run --in`` and ``stop`` on local processes; programs in nodes of a run."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract.errors import DiskFullError, InputError
from launcher.runs.folder import RunFolder
from launcher.targets.held.hold import Hold
from tests.debugged import STOPS, Terminal, debug_rank_1
from tests.launcher.runner import Runner
from tests.waiting import wait_until

JOB = "name: tiny\nstop_grace_s: 5\n"
LEAVES = """
import atexit, json, os, socket, subprocess, sys, tempfile, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo")
seen = {
    "env": os.environ.get("LEFT"),
    "module": "left_behind" in sys.modules,
    "path": "/left" in sys.path,
    "threads": threading.active_count(),
    "grad": torch.is_grad_enabled(),
    "random": torch.rand(1).item(),
    "attempt": os.environ["LAUNCHER_NODE_ATTEMPT"],
    "argv": sys.argv[1:],
    "cwd": os.getcwd(),
}
with open(os.path.join(os.environ["RUN_DIR"], "seen-" + os.environ["RANK"]), "w") as file:
    json.dump(seen, file)
os.environ["LEFT"] = "1"
sys.modules["left_behind"] = sys
sys.path.append("/left")
torch.set_grad_enabled(False)
port = socket.create_server(("127.0.0.1", int(sys.argv[1]) + dist.get_rank()))
left = "import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", left, "left-by-a-run"], start_new_session=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
os.chdir("/")
print("trained", flush=True)
dist.barrier()
if "fail" in sys.argv:
    raise ValueError("as asked")
dist.destroy_process_group()
"""
"""Tells what it finds, and leaves some of each behind."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A hold ``dev`` of two nodes."""
    launcher = Runner(tmp_path_factory.mktemp("dev"))
    launcher.write("", JOB)
    launcher.well("hold", "--name", "dev", "--nnodes", "2", "--nproc-per-node", "1", *ON)
    yield launcher
    assert launcher("stop", "dev").returncode == 0
    assert not launcher.processes()


@pytest.fixture
def dev(shared: Runner) -> Runner:
    """The hold, for this test alone."""
    shared.write("", JOB)
    return shared


ON = ("--on", "local")


def seen(launcher: Runner, rank: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (launcher.folder / f"runs/latest/seen-{rank}").read_text()
    )
    return found


def test_runs_in_a_hold_see_nothing_of_earlier_ones(dev):
    dev.write(LEAVES, JOB)
    told = []
    ports = str(20000 + os.getpid() % 10000)
    for words, code in (([ports], 0), ([ports, "fail"], 1), ([ports], 0)):
        done = dev("run", "job.yaml", "--in", "dev", "--", *words)
        assert done.returncode == code, done.stderr
        assert done.stdout.count("trained") == 2
        assert "nnodes 2 x nproc_per_node 1" in done.stderr
        told += [seen(dev, rank) for rank in (0, 1)]
        wait_until(lambda: not left_by_runs())
    assert dev.outcome["cause"] == "completed"
    for one in told:
        assert one["env"] is None
        assert one["module"] is False
        assert one["path"] is False
        assert one["threads"] == 1
        assert one["grad"] is True
        assert one["attempt"] == "0"
        assert one["cwd"] == str(dev.folder)
    assert len({one["random"] for one in told}) == len(told)
    # The failed one can be had again, in the hold unless another place is named.
    (again,) = [r for r in dev.run_ids() if "training-failed" in outcome_of(dev, r)]
    for words in (("--in", "dev"), ()):
        done = dev("run", "--again", again, *words, "--", "fail")
        assert done.returncode == 1, done.stderr
        assert "running on the hold dev on local" in done.stderr


def left_by_runs() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"left-by-a-run" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def outcome_of(launcher: Runner, run_id: str) -> str:
    path = launcher.folder / "runs" / run_id / "outcome.json"
    return path.read_text() if path.exists() else ""


ENTERS = """
import sys
from pathlib import Path
from launcher.runs.folder import RunFolder
from launcher.targets.held import hold
write = hold.dump_record
def pause(user):
    print("between", flush=True)
    sys.stdin.readline()
    return write(user)
hold.dump_record = pause
held = hold.Hold(RunFolder(Path(sys.argv[1])))
held.enter("first")
print("entered", flush=True)
sys.stdin.readline()
"""
"""A launcher that stops while it takes a hold."""


def test_two_launchers_cannot_take_a_hold_at_the_same_time(dev):
    folder = next((dev.folder / "runs").glob("dev-*"))
    other = Hold(RunFolder(folder))
    pipe = subprocess.PIPE
    words = (sys.executable, "-c", ENTERS, str(folder))
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=dev.env) as first:
        assert first.stdin
        assert first.stdout
        assert first.stdout.readline() == "between\n"
        with pytest.raises(InputError, match="dev is in use: another run"):
            other.enter("second")
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "entered\n"
        with pytest.raises(InputError, match="dev is in use: first of "):
            other.enter("second")
        first.kill()
    # What the dead one wrote is still there.
    other.enter("second")
    assert (user := Hold(other.run).read_user())
    assert user.run_id == "second"
    other.leave()
    assert Hold(other.run).read_user() is None


def test_a_hold_on_a_full_disk_is_not_taken(dev, monkeypatch):
    hold = Hold(RunFolder(next((dev.folder / "runs").glob("dev-*"))))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(DiskFullError, match=r"the disk at .* is full"):
            hold.enter("first")
    hold.leave()
    assert hold.read_user() is None


def test_a_rank_of_a_run_in_a_hold_is_debugged(dev):
    dev.write(STOPS, JOB)
    debug_rank_1(dev, "job.yaml", "--in", "dev")


def test_a_shell_is_opened_in_a_node(dev):
    terminal = Terminal(dev, "exec", "dev", "--node", "1")
    terminal.type("echo node-$LAUNCHER_NODE_INDEX-of-$(pwd)")
    terminal.wait(f"node-1-of-{dev.folder}")
    terminal.type("exit 4")
    assert terminal.finish() == 4, terminal.text
