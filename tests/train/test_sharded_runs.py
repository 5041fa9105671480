"""Sharded trainings under the launcher: a worker is killed, nodes leave and come back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fabric_train.worker_env import WorkerEnv
from train.config import parse_config
from train.loop import train

LIMIT_S = 240.0
PROGRAMS = Path(__file__).parent / "programs"
OPTIONS = (
    *("--global_batch_size=24", "--virtual_shards=4", "--checkpoint_every_steps=2"),
    *("--max_grad_norm=1", "--accelerator=cpu"),
)
JOB = """
name: sharded
command: [{program}, --strategy=fsdp, {options}]
nproc_per_node: {processes}
max_restarts: 3
start: fork
agent: {{hang_min_s: 20}}
"""


def write_job(folder: Path, program: str, processes: int, steps: int) -> None:
    options = ", ".join((*OPTIONS, f"--max_steps={steps}"))
    text = JOB.format(program=PROGRAMS / program, options=options, processes=processes)
    (folder / "job.yaml").write_text(text)


def launch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "launcher", *arguments]


def score_alone(folder: Path, steps: int) -> dict[str, Any]:
    config = parse_config([*OPTIONS, f"--max_steps={steps}"])
    return dict(train(config, WorkerEnv(run_dir=folder)))


@pytest.mark.slow
def test_a_sharded_training_goes_on_when_a_node_leaves_and_when_it_comes_back(tmp_path, clean):
    write_job(tmp_path, "slow_steps.py", processes=1, steps=400)
    process = subprocess.Popen(
        launch("run", "job.yaml", "--on", "local", "--nnodes", "1:2"),
        cwd=tmp_path,
        env=clean,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    run = tmp_path / "runs/latest"

    def worlds() -> list[int]:
        """The sizes of the worlds that have made a step, in the order of time."""
        found = []
        for path in (run / "ledger").glob("train-*"):  # one for each start of rank 0
            events = [json.loads(line) for line in path.read_text().splitlines()]
            begun = [event["at"] for event in events if event["event"] == "first-step"]
            found += [(at, events[0]["world_size"]) for at in begun]
        return [size for _, size in sorted(found)]

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S / 3
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    try:
        wait_for(lambda: worlds() == [2])
        for expected in ([2, 1], [2, 1, 2]):
            scale = launch("scale", str(expected[-1]))
            subprocess.run(scale, cwd=tmp_path, env=clean, check=True, timeout=LIMIT_S)
            wait_for(lambda expected=expected: worlds() == expected)
        (run / "go").touch()
        _, err = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, err.decode()
    metrics = json.loads((run / "outcome.json").read_text())["metrics"]
    alone = score_alone(tmp_path / "alone", 400)
    assert (metrics["steps"], metrics["world_size"]) == (400, 2)
    # Rounding grows over so many steps; a lost or repeated batch would show in the first digits.
    assert metrics["test_accuracy"] == pytest.approx(alone["test_accuracy"], abs=0.02)
    assert metrics["test_loss"] == pytest.approx(alone["test_loss"], abs=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: no CUDA device")
@pytest.mark.parametrize(
    "options",
    [(), ("--strategy_options.offload=true",), ("--precision=bf16-mixed",)],
    ids=["plain", "offload", "bf16"],
)
def test_on_gpus_the_scores_are_those_of_one_process(processes, finish, tmp_path, options):
    common = ("--workload=charlm", "--max_steps=12", "--virtual_shards=4", "--max_grad_norm=1")
    started = processes.start_torchrun(
        min(2, torch.cuda.device_count()),
        *("-m", "train", "--strategy=fsdp", "--accelerator=cuda", *common, *options),
        RUN_DIR=str(tmp_path),
    )
    code, _, err = finish(started)
    assert code == 0, err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    config = parse_config([*common, "--accelerator=cpu"])
    alone = train(config, WorkerEnv(run_dir=tmp_path / "alone"))
    for score in ("train_loss", "test_loss"):
        assert metrics[score] == pytest.approx(alone[score], abs=0.02), score
