"""Types ``launcher`` in a folder of its own, as a person would."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.contract.protocol import RUN_ID
from launcher.targets import process_table
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
PREFIX = "name: tiny\nnproc_per_node: 1\nstop_grace_s: 10\n"
WAITING = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("up", flush=True)
pathlib.Path(os.environ["RUN_DIR"], "up-" + os.environ["RANK"]).touch()
time.sleep(300)
"""


def hear_hangups() -> None:
    """As from a terminal, also where these tests themselves run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Runner:
    """Types ``launcher`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.limit_s = folder, 150.0
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        # torch's compiler sets it in each process that imports it.
        self.env.pop("TORCHINDUCTOR_CACHE_DIR", None)

    def write(self, script: str, job: str = PREFIX) -> None:
        (self.folder / "train.py").write_text(script)
        (self.folder / "job.yaml").write_text(job + "command: [train.py]\n")

    def argv(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "launcher", *argv]

    def __call__(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return run_program(self.argv(*argv), cwd=self.folder, env=self.env, timeout=self.limit_s)

    def well(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """One that has to end with code 0."""
        done = self(*argv)
        assert done.returncode == 0, done.stderr
        return done

    def fails(self, code: int, *argv: str) -> str:
        """What one that has to end with this code says on stderr: its own errors have no stack."""
        done = self(*argv)
        assert done.returncode == code, done.stdout + done.stderr
        assert code not in (2, 3) or "Traceback" not in done.stderr, done.stderr
        return done.stderr

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(*argv),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=hear_hangups,
        )

    @property
    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runs/latest/outcome.json").read_text())
        return found

    def run_ids(self) -> list[str]:
        runs = self.folder / "runs"
        return [p.name for p in runs.glob("*-*") if not p.is_symlink()] if runs.exists() else []

    def processes(self) -> list[int]:
        return [pid for run_id in self.run_ids() for pid in process_table.find(**{RUN_ID: run_id})]
