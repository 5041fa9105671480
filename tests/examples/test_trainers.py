"""Scripts with a Trainer under the launcher: a worker and a node lost, a stop, another world.

What they log is what they log undisturbed.
"""

from __future__ import annotations

import csv
import json
import math
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
from tests.programs import run_program
from tests.training import clean_environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests/fabric_train/programs/faulty.py"
LIMIT_S = 400.0

EXAMPLES, SHARDED = str(ROOT / "examples"), str(Path(__file__).with_name("sharded.py"))
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


def assert_close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(math.isclose(one[k], other[k], rel_tol=1e-3, abs_tol=1e-5) for k in one), (
            one,
            other,
        )


def test_a_trainer_goes_on_where_its_worker_was_killed(train):
    training = train("killed", [*SCRIPTS["Trainer"], "--epochs", "1"])
    options = ("--nproc-per-node", "1", "--set", "start=fork")
    training.finish(training.start(*options, KILL="0:17", SLOW_S="0.1"))
    assert "goes on after step" in training.output()
    steps = [row["step"] for row in training.rows() if "train_loss_step" in row]
    assert steps == [*range(40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resized"),
    [
        ("Trainer", "3"),
        ("LightningCLI", "4"),
        ("transformers", "1"),
        ("transformers by fsdp", "1"),
        ("transformers by fsdp, in parts", "3"),
        ("accelerate", "4"),
    ],
)
def test_a_trainer_survives_lost_workers_lost_nodes_stops_and_another_world(train, name, resized):
    if (package := name.partition(" ")[0]) in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is missing")
    undisturbed = train("undisturbed", SCRIPTS[name])
    undisturbed.finish(undisturbed.start("--nproc-per-node", "2"))
    expected = undisturbed.rows()

    disturbed = train("disturbed", SCRIPTS[name])
    run = disturbed.start("--nnodes", "2", "--nproc-per-node", "1", KILL="1:17", SLOW_S="0.1")
    disturbed.wait_for(lambda: len(disturbed.events("first-step")) == 2)
    assert (disturbed.folder / "killed").exists()
    disturbed.kill_node(1)
    disturbed.wait_for(lambda: len(disturbed.events("first-step")) == 3)
    disturbed.wait_for(lambda: disturbed.events("progress")[-1]["step"] > 30)
    disturbed.stop()
    disturbed.finish(run, 143)
    (agreed,) = disturbed.events("stop-agreed")
    step = agreed["step"]
    assert 30 < step < 100
    # The same world: nothing is lost or repeated, and the bits are the same.
    before = [row for row in expected if row["step"] < step]
    assert [row for row in disturbed.rows() if row["step"] < step] == before
    assert len(before) >= 15

    disturbed.finish(disturbed.start("--nproc-per-node", resized))
    assert f"goes on after step {step}" in disturbed.output()
    assert_close(disturbed.rows(), expected)
    report = [sys.executable, "-m", "launcher", "report", disturbed.run.resolve().name]
    told = run_program(report, cwd=disturbed.folder, env=clean_environment(), timeout=60)
    assert "productive" in told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "rows"), [("lightning_trainer.py", 22), ("transformers_trainer.py", 10)]
)
def test_with_dropout_a_lost_worker_changes_no_bit_of_the_log(train, example, rows):
    pytest.importorskip(example.partition("_")[0], reason=f"{example} needs it")
    script = [f"{EXAMPLES}/{example}", "--epochs", "1"]
    undisturbed, disturbed = train("undisturbed", script), train("disturbed", script)
    undisturbed.finish(undisturbed.start("--nproc-per-node", "2"))
    disturbed.finish(disturbed.start("--nproc-per-node", "2", KILL="1:17", SLOW_S="0.1"))
    assert "goes on after step" in disturbed.output()
    assert len(disturbed.rows()) == rows
    assert disturbed.rows() == undisturbed.rows()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "joins"),
    [
        ("lightning_trainer.py", "**read_world(),"),
        ("accelerate_loop.py", "cpu=not torch.cuda.is_available()"),
        ("transformers_trainer.py", "use_cpu=not torch.cuda.is_available(),"),
    ],
)
def test_processes_that_would_each_train_by_itself_are_refused(train, tmp_path, example, joins):
    text = Path(EXAMPLES, example).read_text()
    pytest.importorskip(example.partition("_")[0], reason=f"{example} needs it")
    assert joins in text
    script = tmp_path / example
    script.write_text(text.replace(joins, ""))
    training = train("apart", [str(script)])
    training.finish(training.start("--nproc-per-node", "2"), 2)
    assert "2 processes were started, but train in groups of 1" in training.output()
    assert not list((training.folder / "checkpoints").glob("step-*"))
