"""``looking``: a training's step and the looker's memory, while ``top`` shows 64 nodes and the
agent is scraped each second.

The training and its agent are real. The other 63 nodes are copies of its node in the run's folder,
which ``top`` reads: on their own machines they have a training of their own to hold up.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.commands import ROOT, answering, find_launcher, run, start
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Comparison, Trial, compare

NODES = 64
WINDOW_S, SETTLE_S, LIMIT_S = 6.0, 4.0, 60.0
LOOKS = 600
"""Ten minutes of them."""
SCRIPT = ROOT / "benchmarks" / "peers" / "looked_at.py"
JOB = """
name: looked-at
nproc_per_node: 1
agent: {{health: {{port: {port}}}}}
command: [{script}]
"""


def looking() -> Generator[Trial]:
    """The mean step of some seconds with and without a look; the memory of who looks."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        training(Path(name)) as it,
    ):
        folder, port = it

        def watched() -> float:
            with top(folder), scraping(port):
                time.sleep(SETTLE_S)
                return step_s(folder)

        what = f"a step, {NODES} nodes looked at each second, against nobody looking"
        yield compare(what, watched, lambda: step_s(folder), Goal(of="ratio", most=1.01))
        program = (sys.executable, "-m", "benchmarks.looking", str(folder))
        row = Comparison(
            what=f"memory after {LOOKS} looks, against that after 100",
            goal=Goal(of="ratio", most=1.1),
            unit="MB",
        )

        def look_long() -> dict[str, float]:
            with answering(program) as ask:
                found: dict[str, float] = json.loads(ask())
                return found

        yield Trial(take=look_long, rows=(row,), warm_up=0, pairs=3)


@contextmanager
def training(folder: Path) -> Iterator[tuple[Path, int]]:
    """The folder of a run that goes on, and the port of its node's agent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (folder / "job.yaml").write_text(JOB.format(port=port, script=SCRIPT))
    runs = ("--runs", str(folder / "runs"))
    launcher = find_launcher()
    run((*launcher, "run", str(folder / "job.yaml"), "--on", "local", "--detach", *runs))
    latest = (folder / "runs" / "latest").resolve()
    try:
        wait_for(latest / "steps")
        wait_for(latest / "nodes/0/0/vitals.json")
        for index in range(1, NODES):
            shutil.copytree(latest / "nodes/0", latest / "nodes" / str(index))
            ledger = (latest / "ledger/agent-0-0.jsonl").read_text()
            own = ledger.replace('"node_index": 0', f'"node_index": {index}')
            (latest / f"ledger/agent-{index}-0.jsonl").write_text(own)
        yield latest, port
    finally:
        run((*launcher, "stop", "--grace", "0", *runs))


def wait_for(path: Path) -> None:
    """Until a file is there. Raises BenchmarkError."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{path} did not come within {LIMIT_S:g} s")
        time.sleep(0.1)


def step_s(folder: Path) -> float:
    """The mean of the steps in a window: a median would not see a look that holds up one of 50."""
    began, before = time.perf_counter(), int((folder / "steps").read_text())
    time.sleep(WINDOW_S)
    spent_s, steps = time.perf_counter() - began, int((folder / "steps").read_text()) - before
    if steps < 100:
        raise BenchmarkError(f"the training made {steps} steps in {WINDOW_S:g} s")
    return spent_s / steps


@contextmanager
def top(folder: Path) -> Iterator[None]:
    """``launcher top`` in a terminal that somebody reads."""
    ours, theirs = pty.openpty()
    argv = (*find_launcher(), "top", folder.name, "--runs", str(folder.parent), "--interval", "1")
    env = {**os.environ, "TERM": "xterm-256color"}
    child = start(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    seen: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # its end
            while data := os.read(ours, 1 << 16):
                seen.append(data)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield
        if child.poll() is not None or not any(b"0.0" in data for data in seen):
            raise BenchmarkError(f"top showed nothing: {b''.join(seen)[-500:]!r}")
    finally:
        child.kill()
        child.wait()
        os.close(ours)


@contextmanager
def scraping(port: int) -> Iterator[None]:
    """Asks the agent each second, as Prometheus does. Raises BenchmarkError where none answers."""
    over, answers = threading.Event(), 0

    def ask() -> None:
        nonlocal answers
        while not over.wait(1.0):
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as one,
            ):
                answers += b"launcher_step" in one.read()

    threading.Thread(target=ask, daemon=True).start()
    try:
        yield
        if not answers:
            raise BenchmarkError("the agent answered no question")
    finally:
        over.set()


def look_on(folder: Path, looks: int = LOOKS) -> dict[str, float]:
    """This process' memory in MB after so many looks, and after the first 100."""
    from launcher.runs.folder import RunFolder
    from launcher.screen.snapshot import read_snapshot, render_snapshot

    found = {}
    for number in range(1, looks + 1):
        render_snapshot(read_snapshot(RunFolder(folder), time.time()))
        if number in (100, looks):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found["ours" if number == looks else "theirs"] = pages * os.sysconf("SC_PAGESIZE") / 1e6
    return found


if __name__ == "__main__":
    sys.stdin.readline()
    print(json.dumps(look_on(Path(sys.argv[1]))), flush=True)
