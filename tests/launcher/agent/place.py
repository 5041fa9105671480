"""One node for tests: the agent from its archive, with real processes and signals."""

import json
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil

from launcher.contract.node_plan import AgentSettings, NodeTask
from launcher.contract.protocol import RUN_ID
from tests.launcher.node_plans import node_plan
from tests.waiting import LIMIT_S, wait_until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def shared_memory_of(processes: list[psutil.Process]) -> set[Path]:
    """The files of /dev/shm that some of the processes have mapped."""
    found = set()
    for process in processes:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if path.startswith("/dev/shm/") and Path(path).exists():
                found.add(Path(path))
    return found


class Place:
    """One node in a folder of its own."""

    def __init__(
        self, folder: Path, archive: Path, index: int = 0, *, incarnation: int = 0
    ) -> None:
        self.folder, self.archive, self.index = folder, archive, index
        self.incarnation = incarnation
        self.run_dir = folder / "run"
        self.node_dir = self.run_dir / f"nodes/{index}/{incarnation}"
        self.label = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LAUNCHER_", "PET_", "TORCHELASTIC_", "PYTHON"))
        }

    def write(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    def plan(
        self,
        *command: str,
        nproc: int = 1,
        min_nodes: int = 1,
        max_nodes: int = 1,
        max_restarts: int = 3,
        env: tuple[tuple[str, str], ...] = (),
        port: int = 0,
        conf: tuple[tuple[str, str], ...] = (),
        **settings: Any,
    ) -> Path:
        """Writes the node plan; settings that are not given suit tests."""
        fixed = (
            ("RUN_DIR", str(self.run_dir)),
            (RUN_ID, self.label),
            ("OMP_NUM_THREADS", "1"),
            ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),
            ("GLOO_SOCKET_IFNAME", "lo"),
            ("CUDA_VISIBLE_DEVICES", ""),
        )
        meets = {"endpoint_host": "127.0.0.1", "endpoint_port": port, "conf": conf}
        node = node_plan(
            {**meets, "is_host": self.index == 0},
            node_index=self.index,
            incarnation=self.incarnation,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            nproc_per_node=nproc,
            max_restarts=max_restarts,
            command=command or ("script.py",),
            workdir=str(self.folder),
            env=(*fixed, *env),
            log_dir=str(self.node_dir),
        )
        path = self.folder / f"node-plan-{self.index}.json"
        path.write_text(NodeTask(node=node, settings=AgentSettings(**settings)).to_json())
        return path

    def start(self, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable,
            str(self.archive),
            str(self.folder / f"node-plan-{self.index}.json"),
        ]
        with (self.folder / f"console-{self.index}.log").open("wb") as console:
            self.process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={**self.env, RUN_ID: self.label},
                stdin=stdin,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def run(self) -> int:
        return self.start().wait(LIMIT_S)

    def console(self) -> str:
        return (self.folder / f"console-{self.index}.log").read_text(errors="replace")

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.node_dir / "outcome.json").read_text())
        return found

    def events(self) -> list[dict[str, Any]]:
        path = self.run_dir / f"ledger/agent-{self.index}-{self.incarnation}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def events_or_none(self) -> list[dict[str, Any]]:
        return (
            self.events()
            if (self.run_dir / f"ledger/agent-{self.index}-{self.incarnation}.jsonl").exists()
            else []
        )

    def rank(self, rank: int = 0, attempt: int = 0) -> Path:
        return self.node_dir / f"attempt-{attempt}/rank-{rank}"

    def stdout(self, rank: int = 0, attempt: int = 0) -> str:
        path = self.rank(rank, attempt) / "stdout"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self) -> list[psutil.Process]:
        """All living processes that bear this node's label, whoever their parent is."""
        found = []
        for process in psutil.process_iter():
            try:
                labelled = process.environ().get(RUN_ID) == self.label
            except (psutil.Error, OSError):
                continue
            if labelled and is_living(process):
                found.append(process)
        return found

    def pid_in(self, name: str) -> int:
        """A pid that the script wrote to a file of its folder."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text())
        return int(path.read_text())
