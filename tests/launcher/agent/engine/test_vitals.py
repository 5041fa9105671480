"""What a node says of itself: read from a machine's files, and from the training's ledger."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.agent.engine.health_server import read_gauges
from launcher.agent.engine.vitals import Processor, read_memory, sum_up_training


def test_the_busy_share_is_that_since_the_last_question(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\n")
    processor = Processor(stat)
    stat.write_text("cpu  160 0 115 820 5 0 0 0 0 0\ncpu0 1\n")
    assert processor.share() == 0.75
    stat.unlink()
    assert processor.share() == 0.0


def test_memory_is_the_containers_where_it_has_a_limit_and_else_the_machines(
    tmp_path: Path,
) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("600\n")
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:  4 kB\nMemFree: 1 kB\nMemAvailable:  3 kB\n")
    assert read_memory(tmp_path, machine) == (600, 1000)
    (tmp_path / "memory.max").write_text("max\n")
    assert read_memory(tmp_path, machine) == (1024, 4096)
    assert read_memory(tmp_path, tmp_path / "absent") == (0, 0)


def test_a_ledger_that_is_cut_still_tells_step_loss_pace_and_checkpoint() -> None:
    events = [
        {"event": "progress", "step": 10, "at": 100.0, "loss": 2.0, "samples": 50},
        {"event": "saved", "step": 10, "at": 101.0},
        {"event": "progress", "step": 20, "at": 104.0, "loss": 1.5, "samples": 80},
        {"event": "progress", "step": 30, "at": 106.0, "loss": None, "samples": 80},
    ]
    text = 'p": 9}\n' + "\n".join(map(json.dumps, events)) + '\n{"event": "prog'
    told = {"step": 30, "saved_at": 101.0, "loss": 1.5, "samples_per_s": 20.0}
    assert sum_up_training(text) == told


def test_prometheus_gets_what_is_known_and_nothing_else() -> None:
    gpu = {"name": "0", "share": 0.5, "memory_bytes": 1, "memory_limit_bytes": 2}
    vitals = {"cpu_share": 0.25, "gpus": [{**gpu, "temperature_c": 60}], "training": {"loss": 2.0}}
    told = {name: values for name, (_, values) in read_gauges(vitals).items()}
    assert told == {
        "launcher_training_loss": {"": 2.0},
        "launcher_node_cpu_ratio": {"": 0.25},
        "launcher_gpu_utilization_ratio": {'{gpu="0"}': 0.5},
        "launcher_gpu_memory_bytes": {'{gpu="0"}': 1},
        "launcher_gpu_memory_limit_bytes": {'{gpu="0"}': 2},
        "launcher_gpu_temperature_celsius": {'{gpu="0"}': 60},
    }
