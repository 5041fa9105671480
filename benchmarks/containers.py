"""``containers``: from ``docker kill`` of one of two nodes to the next collective of the other."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

from benchmarks.commands import find_launcher, read
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.own_script import IMAGE
from benchmarks.trees import Trees
from benchmarks.trials import Trial, compare
from launcher.contract.protocol import LABEL_NODE_INDEX, LABEL_RUN_ID

GOAL = Goal(of="seconds", most=1.5)
TOLD = "told"
SCRIPT = f"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
told = open(os.environ["RUN_DIR"] + "/{TOLD}", "a", buffering=1)
while True:
    dist.all_reduce(torch.ones(1))
    told.write(f"{{time.monotonic()}} {{dist.get_world_size()}}\\n")
    time.sleep(0.02)
"""
ARGV = ("run", "x.py", "--on", "docker", "--nnodes", "1:2", "--nproc-per-node", "1")
SETTINGS = ("--set", "start=fork")
END_LIMIT_S = 60.0


def containers() -> Generator[Trial]:
    """One row, in Docker, where an engine holds the image."""
    docker = shutil.which("docker")
    if docker is None:
        raise BenchmarkError("no program docker; fix: .ci/setup")
    read((docker, "image", "inspect", IMAGE))
    what = "docker kill of a node in a collective, to the next collective of the other"
    yield compare(what, partial(time_kill, docker), goal=GOAL, warm_up=0)


def time_kill(docker: str) -> float:
    """Seconds from the command ``docker kill``; its own start is a part of them."""
    with tempfile.TemporaryDirectory() as name, Trees(Path(name), {}) as trees:
        # The container may run as any user.
        trees.folder.chmod(0o755)
        (trees.folder / "x.py").write_text(SCRIPT)
        launcher = trees.start((*find_launcher(), *ARGV, *SETTINGS))
        try:
            run = trees.folder / "runs/latest"
            trees.wait_for(lambda: any(size == 2 for _, size in _told(run)), "a world of 2")
            labels = {LABEL_RUN_ID: run.resolve().name, LABEL_NODE_INDEX: "1"}
            filters = [word for item in labels.items() for word in ("--filter", _label(*item))]
            container = read((docker, "ps", "--quiet", *filters)).strip()
            killed_at = time.monotonic()
            read((docker, "kill", container))
            trees.wait_for(lambda: _first_alone(run, killed_at), "a world of 1")
            return _first_alone(run, killed_at) - killed_at
        finally:
            launcher.terminate()
            launcher.wait(END_LIMIT_S)


def _label(name: str, value: str) -> str:
    return f"label={name}={value}"


def _told(run: Path) -> list[tuple[float, int]]:
    """When each collective ended, and in a world of which size; whole lines only."""
    path = run / TOLD
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = (line.split() for line in lines if line.endswith("\n"))
    return [(float(at), int(size)) for at, size in whole]


def _first_alone(run: Path, since: float) -> float:
    """The first collective of one node after an instant; 0 where there was none yet."""
    return min((at for at, size in _told(run) if size == 1 and at > since), default=0.0)
