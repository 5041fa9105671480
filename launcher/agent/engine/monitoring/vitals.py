"""What a node reports every few seconds: steps, processor, memory, GPUs, the training.

``launcher top`` reads the file that this writes, and ``/metrics`` tells the same to Prometheus.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.gpu_memory import open_gauges
from launcher.agent.engine.node_state import Node
from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.records import dump_record, parse_object
from launcher.contract.reports.goodput import Tally
from launcher.contract.reports.vitals import GpuVitals, TrainingVitals, Vitals

_CGROUP = Path("/sys/fs/cgroup")


def tell_vitals(
    node: Node, run_dir: Path, gauges: Callable[[], tuple[GpuVitals, ...]], clock: Clock
) -> None:
    """Writes the node's vitals every ``VITALS_S`` seconds, from a thread that ends with this
    process. If a write fails, the next one makes up for it."""
    processor, book = Processor(), TrainingBook(run_dir, node.attempts.node_dir, clock.wall())
    path = node.attempts.node_dir / protocol.VITALS_FILE

    def read_now() -> Vitals:
        used, limit = read_memory()
        training, seconds = book.read_new_events()
        return Vitals(
            at=clock.wall(),
            steps={str(rank): beat.steps for rank, beat in node.attempts.beats().items()},
            cpu_share=processor.share(),
            memory_bytes=used,
            memory_limit_bytes=limit,
            gpus=gauges(),
            training=training,
            seconds=seconds,
        )

    def tell() -> None:
        # Ended by the end of the process: nothing waits for it.
        while not over.wait(protocol.VITALS_S):
            with contextlib.suppress(OSError):
                write_atomically(path, dump_record(read_now()))

    over = threading.Event()
    threading.Thread(target=tell, name="vitals", daemon=True).start()


class Processor:
    """How busy this machine's processors are between two calls of ``share``."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat, self._before = stat, (0, 0)
        self.share()

    def share(self) -> float:
        """The busy share since the last call, 0 to 1."""
        times = [int(word) for word in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        idle, total = sum(times[3:5]), sum(times)
        (idle_before, total_before), self._before = self._before, (idle, total)
        passed = total - total_before
        return round(1 - (idle - idle_before) / passed, 3) if passed > 0 else 0.0


def read_memory(cgroup: Path = _CGROUP, machine: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Bytes in use and their limit: the container's where it has one, else the machine's."""
    with contextlib.suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text())  # "max" where there is none
        return int((cgroup / "memory.current").read_text()), limit
    lines = (line.split(":") for line in machine.read_text().splitlines())
    sizes = {name: int(rest.split()[0]) << 10 for name, rest in lines}
    return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]


def read_hardware(visible: str | None) -> dict[str, str]:
    """The processors and memory that this node may use, and the models of its GPUs, in words."""
    gpus = Counter(gpu.model for gpu in open_gauges(visible)()).items()
    return {
        "CPUs": str(len(os.sched_getaffinity(0))),
        "memory": f"{read_memory()[1] / 2**30:.0f} GiB",
        "GPUs": ", ".join(f"{count} x {model}" for model, count in gpus) or "none",
    }


class TrainingBook:
    """Follows the training's ledger: its last values, and what the training's seconds went to.

    Reads the ledgers of other nodes too, if this node sees them: rank 0 may have run there.
    """

    def __init__(self, run_dir: Path, node_dir: Path, since: float) -> None:
        self._folder = run_dir / protocol.LEDGER_DIR
        place = {"node_index": node_dir.parent.name, "incarnation": node_dir.name}
        self._ledgers_here = protocol.TRAIN_LEDGER.format(**place, attempt="*", rank="0")
        self._ledgers = protocol.TRAIN_LEDGER.format(
            node_index="*", incarnation="*", attempt="*", rank="0"
        )
        self._bytes_read: dict[Path, int] = {}
        self._present: Path | None = None
        self._values = TrainingVitals()
        self._values_at = 0.0
        self._tally = Tally(since)

    def read_new_events(self) -> tuple[TrainingVitals, Mapping[str, float]]:
        """``training`` and ``seconds`` of ``Vitals``; empty where rank 0 was never here.

        No second is ever taken back. Raises ``OSError``.
        """
        if next(self._folder.glob(self._ledgers_here), None) is None:
            return TrainingVitals(), {}
        for path in sorted(self._folder.glob(self._ledgers), key=os.path.getmtime):
            with path.open("rb") as file:
                file.seek(self._bytes_read.get(path, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._bytes_read[path] = self._bytes_read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                # A line that this version did not write is ignored.
                with contextlib.suppress(ValueError, TypeError, KeyError, ZeroDivisionError):
                    self._add(path, parse_object(line))
        seconds = {name: round(spent_s, 3) for name, spent_s in self._tally.seconds.items()}
        return self._values, seconds

    def _add(self, path: Path, event: Mapping[str, Any]) -> None:
        name, at = event["event"], float(event["at"])
        if name == "train-started" and event.get("heals"):
            self._present = path
            self._tally.heal()
        elif name == "train-started":
            self._present, self._values, self._values_at = path, TrainingVitals(), 0.0
            self._tally.begin(at)
        elif path == self._present:
            self._tally.add(name, at, event)
            self._set(step=int(event["step"]))
            if name == "saved":
                self._set(saved_at=at)
            if name in ("progress", "trained"):
                before, self._values_at = self._values_at, at
                if before:
                    self._set(samples_per_s=round(event["samples"] / (at - before), 2))
                self._set(loss=float(event["loss"]))

    def _set(self, **values: Any) -> None:
        self._values = replace(self._values, **values)
