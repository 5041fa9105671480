"""What a node says of itself every few seconds: steps, processor, memory, GPUs, the training.

``launcher top`` reads the file that this writes, and ``/metrics`` tells the same to Prometheus.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.gpu_memory import Gauge
from launcher.agent.engine.node_state import Node
from launcher.agent.worker_exit import read_tail
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.records import parse_object

LEDGER_TAIL_BYTES = 8192
"""Of the training's ledger: some ten events."""
_CGROUP = Path("/sys/fs/cgroup")


def tell_vitals(
    node: Node, run_dir: Path, gauges: Callable[[], list[Gauge]] | None, clock: Clock
) -> None:
    """Writes the node's vitals every ``VITALS_S`` seconds, from a thread that ends with this
    process. What a storage that fails for a moment leaves out, the next turn makes up for."""
    processor = Processor()
    path = node.attempts.node_dir / protocol.VITALS_FILE

    def tell() -> None:
        # Ended by the end of the process: nothing waits for it.
        while not over.wait(protocol.VITALS_S):
            with contextlib.suppress(OSError):
                told = read_vitals(node, run_dir, gauges() if gauges else [], processor, clock)
                write_atomically(path, json.dumps(told))

    over = threading.Event()
    threading.Thread(target=tell, name="vitals", daemon=True).start()


def read_vitals(
    node: Node, run_dir: Path, gpus: list[Gauge], processor: Processor, clock: Clock
) -> dict[str, Any]:
    """The fields of ``protocol.VITALS_FILE``."""
    used, limit = read_memory()
    return {
        "at": clock.wall(),
        "phase": node.phase,
        "attempt": node.attempts.number,
        "steps": {str(rank): beat.steps for rank, beat in node.attempts.beats().items()},
        "cpu_share": processor.share(),
        "memory_bytes": used,
        "memory_limit_bytes": limit,
        "gpus": [asdict(gpu) for gpu in gpus],
        "training": read_training(run_dir, node.attempts.node_dir),
    }


class Processor:
    """How busy this machine's processors are between two questions."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat, self._before = stat, (0, 0)
        self.share()

    def share(self) -> float:
        """The busy share since the last question, 0 to 1; 0 where the machine does not tell."""
        try:
            times = [int(word) for word in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        idle, total = sum(times[3:5]), sum(times)
        (idle_before, total_before), self._before = self._before, (idle, total)
        passed = total - total_before
        return round(1 - (idle - idle_before) / passed, 3) if passed > 0 else 0.0


def read_memory(cgroup: Path = _CGROUP, machine: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Bytes in use and their limit: the container's where it has one, else the machine's."""
    with contextlib.suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text())  # "max" where there is none
        return int((cgroup / "memory.current").read_text()), limit
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        lines = (line.split(":") for line in machine.read_text().splitlines())
        found = {name: int(rest.split()[0]) << 10 for name, rest in lines}
        return found["MemTotal"] - found["MemAvailable"], found["MemTotal"]
    return 0, 0


def read_training(run_dir: Path, node_dir: Path) -> Mapping[str, float]:
    """What this node's part of the training's ledger told last; empty where it writes none.

    ``step``, ``loss``, ``samples_per_s`` between the last two events of progress, and ``saved_at``,
    the time of the last checkpoint in seconds since the epoch.
    """
    place = {"node_index": node_dir.parent.name, "incarnation": node_dir.name}
    pattern = protocol.TRAIN_LEDGER.format(**place, attempt="*", rank="0")
    paths = (run_dir / protocol.LEDGER_DIR).glob(pattern)
    with contextlib.suppress(OSError, ValueError):
        newest = max(paths, key=os.path.getmtime)
        return sum_up_training(read_tail(newest, LEDGER_TAIL_BYTES))
    return {}


def sum_up_training(ledger: str) -> dict[str, float]:
    """As ``read_training``, of the last lines of a ledger. Pure."""
    found: dict[str, float] = {}
    at = 0.0
    for line in ledger.splitlines():
        try:
            event = parse_object(line)
        except ValueError:
            continue  # The first line is cut, and the last one may be.
        with contextlib.suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
            found["step"] = max(found.get("step", 0), int(event["step"]))
            if event["event"] == "saved":
                found["saved_at"] = float(event["at"])
            if event["event"] in ("progress", "trained"):
                found["loss"] = float(event["loss"])
                before, at = at, float(event["at"])
                if before:
                    found["samples_per_s"] = round(event["samples"] / (at - before), 2)
    return found
