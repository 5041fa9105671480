"""What a host does when it is asked: a run's end and what is kept of it, a node's grace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.targets.code_archive import pack
from launcher.targets.hosts.program import requests
from launcher.targets.hosts.program.leases import LeaseBook
from launcher.targets.hosts.program.messages import KeeperSpec, Lease, RemoveRun

ROOT = Path(__file__).parents[4]
LEASE = Lease(run_id="r", node_index=0, owner="me", gpus=["0"], slots=0)
IGNORES_THE_SIGNAL = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def wait_until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.02)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run whose code is unpacked and has been imported from."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print(1)")
    run_dir = tmp_path / "runs/r"
    run_dir.mkdir(parents=True)
    requests.unpack(pack(source, ["train.py"]), run_dir / "code")
    cache = run_dir / "code/__pycache__/train.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"0")
    return run_dir


def remove(run_dir: Path) -> int:
    outputs = run_dir.parents[1] / "outputs/r"
    asked = RemoveRun(run_dir=str(run_dir), checkpoint_dir="", outputs_dir=str(outputs))
    return requests.remove_run(asked)


def test_a_run_goes_without_a_trace(run_dir: Path) -> None:
    assert remove(run_dir) == 0
    assert not run_dir.exists()
    assert not (run_dir.parents[1] / "outputs").exists()
    assert remove(run_dir) == 0


def test_what_a_training_wrote_beside_its_code_is_kept_and_named(run_dir: Path) -> None:
    # As Lightning does without being asked to.
    log = run_dir / "code/lightning_logs/version_0/metrics.csv"
    log.parent.mkdir(parents=True)
    log.write_text("loss\n0.5\n")
    (run_dir / "code/train.py").write_text("print(2)")
    answer = remove(run_dir)
    folder = run_dir.parents[1] / "outputs/r"
    kept = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert kept == ["lightning_logs/version_0/metrics.csv", "train.py"]
    assert answer == 2
    assert not run_dir.exists()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Of a node that ends at no request, and has long to do so."""
    spec = KeeperSpec(
        run_id="r",
        node_index=0,
        node_dir=str(tmp_path),
        lease_dir=str(tmp_path / "leases"),
        argv=["sh", "-c", IGNORES_THE_SIGNAL],
        cwd="/",
        unset=[],
        env={},
        secrets={},
        comes_back=False,
        detached=False,
        stop_grace_s=60,
    )
    command = [sys.executable, "-m", "launcher.targets.hosts.program", "keep"]
    keeper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    assert keeper.stdin is not None
    keeper.stdin.write(spec.to_json().encode())
    keeper.stdin.close()
    yield keeper
    keeper.kill()
    keeper.wait()


def test_what_a_node_holds_is_its_own_until_its_grace_is_over(
    tmp_path: Path, keeper: subprocess.Popen[bytes]
) -> None:
    book = LeaseBook(str(tmp_path / "leases"))
    # Short, as a launcher that has asked for the end renews it no more.
    book.take(LEASE, 6.0, None)
    wait_until(lambda: b"ready" in read(tmp_path / "console.log"))
    os.kill(keeper.pid, signal.SIGTERM)
    wait_until(lambda: (book.seconds_left("r", 0) or 0.0) > 10)
    assert keeper.poll() is None


def read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
