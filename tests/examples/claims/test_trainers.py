"""Scripts with a Trainer under the launcher: a worker and a node lost, a stop, another world.

What they log is what they log undisturbed.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.protocol import NODE_INDEX, RUN_ID
from launcher.targets import process_table
from launcher.targets.local.target import find_agents
from tests.training import clean_environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
FAULTY = ROOT / "tests/fabric_train/programs/faulty.py"
LIMIT_S = 400.0
EXAMPLES, SHARDED = str(ROOT / "examples"), str(Path(__file__).parents[1] / "sharded.py")
TRANSFORMERS = [f"{EXAMPLES}/transformers_trainer.py", "--dropout", "0", "--workers", "1"]
SCRIPTS = {
    "Trainer": [f"{EXAMPLES}/lightning_trainer.py", "--dropout", "0", "--workers", "1"],
    "LightningCLI": [
        f"{EXAMPLES}/lightning_cli/main.py",
        *("fit", "--config", f"{EXAMPLES}/lightning_cli/config.yaml"),
    ],
    "transformers": TRANSFORMERS,
    "transformers by fsdp": [SHARDED, "FULL_STATE_DICT", *TRANSFORMERS],
    "transformers by fsdp, in parts": [SHARDED, "SHARDED_STATE_DICT", *TRANSFORMERS],
    "accelerate": [f"{EXAMPLES}/accelerate_loop.py", "0"],
}


class Training:
    """One script in a folder of its own, started again and again."""

    def __init__(self, folder: Path, script: list[str]) -> None:
        folder.mkdir()
        self.folder = folder
        self.command = script
        self.run = folder / "runs/latest"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, **environ: str) -> subprocess.Popen[str]:
        launcher = [sys.executable, "-m", "launcher", "run", str(FAULTY), "--on", "local"]
        fixed = [
            "--set",
            f"checkpoint_dir={self.folder / 'checkpoints'}",
            "--set",
            "max_restarts=3",
        ]
        process = subprocess.Popen(
            [*launcher, *fixed, *options, "--", *self.command],
            cwd=self.folder,
            env=clean_environment(HERE=str(self.folder), PYTHONWARNINGS="ignore", **environ),
            stdout=(self.folder / "printed").open("a"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> None:
        assert process.wait(LIMIT_S) == code, self.output()

    def output(self) -> str:
        return (self.folder / "printed").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        paths = sorted((self.run / "ledger").glob("train-*"))
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [event for event in found if event["event"] == name]

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_until(
            lambda: condition() or self.started[-1].poll() is not None, self.output, limit_s=LIMIT_S
        )
        assert self.started[-1].poll() is None, self.output()

    def kill_node(self, index: int) -> None:
        processes = process_table.find(**{NODE_INDEX: str(index), RUN_ID: self.run.resolve().name})
        (agent,) = find_agents(processes)
        os.kill(agent, signal.SIGKILL)

    def stop(self) -> None:
        stop = [sys.executable, "-m", "launcher", "stop", self.run.resolve().name]
        subprocess.run(stop, cwd=self.folder, env=clean_environment(), check=True, timeout=LIMIT_S)

    def rows(self) -> list[dict[str, float]]:
        """What was logged, with numbers, and without what one row does not have."""
        if printed := dict(re.findall(r"step (\d+) loss ([\d.]+)", self.output())):
            return [{"step": float(k), "loss": float(v)} for k, v in printed.items()]
        state = self.folder / "checkpoints/latest/trainer_state.json"
        if state.exists():
            return [row for row in json.loads(state.read_text())["log_history"] if "loss" in row]
        (path,) = (self.folder / "logs").rglob("metrics.csv")
        with path.open() as file:
            return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for path in (self.folder / "runs").glob("*-*"):
            for pid in process_table.find(**{RUN_ID: path.name}):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Training]]:
    found: list[Training] = []

    def make(name: str, script: list[str]) -> Training:
        found.append(Training(tmp_path / name, script))
        return found[-1]

    yield make
    for training in found:
        training.end()


def test_a_trainer_goes_on_where_its_worker_was_killed(train):
    training = train("killed", [*SCRIPTS["Trainer"], "--epochs", "1"])
    options = ("--nproc-per-node", "1", "--set", "start=fork")
    training.finish(training.start(*options, KILL="0:17", SLOW_S="0.1"))
    assert "goes on after step" in training.output()
    steps = [row["step"] for row in training.rows() if "train_loss_step" in row]
    assert steps == [*range(40)]
