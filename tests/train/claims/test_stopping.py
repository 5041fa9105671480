"""The conversation before a stop, between the real agent and the real training."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fabric_train.worker_env import WorkerEnv
from train.config import TrainConfig
from train.loop import train

LIMIT_S = 200.0
JOB = """
name: stopping
command: [-m, train, --epochs=2000, --checkpoint_every_steps=100000]
nproc_per_node: 2
max_restarts: 1
start: fork
stop_grace_s: 60
"""


def read_events(run: Path, pattern: str) -> list[dict[str, Any]]:
    paths = (run / "ledger").glob(pattern)
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


def test_a_stop_commits_first_and_is_no_failure(tmp_path, clean, wait_until):
    (tmp_path / "job.yaml").write_text(JOB)
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", "run", "job.yaml", "--on", "local"],
        cwd=tmp_path,
        env=clean,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    run = tmp_path / "runs/latest"
    try:
        wait_until(lambda: named(read_events(run, "train-*"), "progress"), process)
        stop = [sys.executable, "-m", "launcher", "stop", run.resolve().name]
        subprocess.run(stop, cwd=tmp_path, env=clean, check=True, timeout=LIMIT_S)
        process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()

    assert process.returncode == 143
    (acknowledged,) = named(read_events(run, "agent-*"), "stop-acknowledged")
    (agreed,) = named(read_events(run, "train-*"), "stop-agreed")
    assert acknowledged["step"] == agreed["step"] > 0
    # No interval would have written this one.
    newest = (run / "checkpoints/latest").resolve().name
    assert newest.startswith(f"step-{agreed['step']:010d}-")
    outcome = json.loads((run / "nodes/0/0/outcome.json").read_text())
    assert outcome["exit_code"] == 143
    assert outcome["restarts"] == {}


def test_room_for_newcomers_is_made_by_a_commit_and_the_training_goes_on(tmp_path):
    node_dir = tmp_path / "node"
    node_dir.mkdir()
    (node_dir / "stop-request").write_text(
        json.dumps({"reason": "resize", "at": 1.0, "deadline": time.time() + 60})
    )
    env = WorkerEnv(run_dir=tmp_path, node_dir=node_dir)
    assert train(TrainConfig(max_steps=6), env)["steps"] == 6
    assert 0 < json.loads((node_dir / "stop-ack").read_text())["step"] < 6
