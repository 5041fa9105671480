"""What a node says of itself: read from a machine's files, and from the training's ledger."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import engine
from launcher.agent.engine.gpu_memory import GpuBusyError, GpuGate, open_devices, open_gauges
from launcher.agent.engine.monitoring.health_server import Health, read_metrics
from launcher.agent.engine.monitoring.vitals import (
    Processor,
    TrainingBook,
    read_hardware,
    read_memory,
)
from launcher.contract.reports.vitals import GpuVitals, TrainingVitals
from tests.launcher.values import by_place, changeable
from tests.launcher.vitals import GPU, vitals
from tests.waiting import StoppedClock


def test_the_busy_share_is_that_since_the_last_question(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\n")
    processor = Processor(stat)
    stat.write_text("cpu  160 0 115 820 5 0 0 0 0 0\ncpu0 1\n")
    assert [processor.share(), processor.share()] == [0.75, 0.0]


def driver(starts: int = 0) -> SimpleNamespace:
    """NVIDIA's library with devices 0 and 1; their UUIDs are GPU-0 and GPU-1."""

    def find(index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return int(index > 1)

    def tell(to: Any, **values: int) -> None:
        for name, value in values.items():
            setattr(to._obj, name, value)

    return SimpleNamespace(
        nvmlInit_v2=lambda: starts,
        nvmlDeviceGetCount_v2=lambda to: tell(to, value=2),
        nvmlDeviceGetHandleByIndex_v2=find,
        nvmlDeviceGetHandleByUUID=lambda name, to: find(int(name[4:]), to),
        nvmlDeviceGetMemoryInfo=lambda one, to: tell(to, total=4096, used=100 * one.value),
        nvmlDeviceGetName=lambda one, model, size: setattr(model, "value", b"H200"),
        nvmlDeviceGetUtilizationRates=lambda one, to: tell(to, gpu=25 * one.value),
        nvmlDeviceGetTemperature=lambda one, of, to: tell(to, value=60 + one.value - 99 * of),
    )


@pytest.mark.parametrize(
    ("visible", "used"),
    [
        (None, {"0": 100, "1": 200}),
        ("1", {"1": 200}),
        ("GPU-1, 0,7", {"GPU-1": 200, "0": 100}),
        ("", None),
        ("7", None),
    ],
)
def test_a_node_s_gpus_are_those_that_are_visible_as_their_driver_tells(monkeypatch, visible, used):
    monkeypatch.setattr("ctypes.CDLL", lambda _: driver())
    devices = open_devices(visible)
    assert (devices and devices()) == used
    gauges = (
        GpuVitals(
            name=name,
            model="H200",
            share=busy / 400,
            memory_bytes=busy,
            memory_limit_bytes=4096,
            temperature_c=60 + busy // 100,
        )
        for name, busy in (used or {}).items()
    )
    assert open_gauges(visible)() == (*gauges,)
    told = read_hardware(visible)
    assert told["GPUs"] == (f"{len(used)} x H200" if used else "none")
    assert told["CPUs"] == str(len(os.sched_getaffinity(0)))
    assert told["memory"] == f"{read_memory()[1] / (1 << 30):.0f} GiB"
    monkeypatch.setattr("ctypes.CDLL", lambda _: driver(starts=1))
    assert open_devices(visible) is None


def test_gpus_are_waited_for_until_no_more_is_used_than_before_but_not_for_ever():
    clock, used = StoppedClock(now=100.0), {"0": 7}
    assert GpuGate(None, 5.0, clock).wait() == 0.0
    gate = GpuGate(lambda: dict(used), 5.0, clock)
    used |= {"0": 7 + (300 << 20), "1": 256 << 20}
    told = r"in use 5 s after the workers ended \(device 0: 300 MiB\); see nvidia-smi"
    with pytest.raises(GpuBusyError, match=told):
        gate.wait()
    assert clock.now == pytest.approx(105.1)


def test_memory_is_the_containers_where_it_has_a_limit_and_else_the_machines(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("600\n")
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:  4 kB\nMemFree: 1 kB\nMemAvailable:  3 kB\n")
    assert read_memory(tmp_path, machine) == (600, 1000)
    (tmp_path / "memory.max").write_text("max\n")
    assert read_memory(tmp_path, machine) == (1024, 4096)


def test_prometheus_gets_what_is_known_and_nothing_else():
    health = Health(
        healthy=True,
        phase="run",
        attempt=0,
        world_size=1,
        step=3,
        heartbeat_age_s=None,
        restarts={},
        phase_s={},
        vitals=vitals(cpu_share=0.25, gpus=(GPU,), training=TrainingVitals(loss=2.0)),
    )
    assert {name: values for name, _, values in read_metrics(health) if values} == {
        "launcher_healthy": {"": 1},
        "launcher_world_size": {"": 1},
        "launcher_attempt": {"": 0},
        "launcher_step": {"": 3},
        "launcher_training_loss": {"": 2.0},
        "launcher_node_cpu_ratio": {"": 0.25},
        "launcher_node_memory_bytes": {"": 1},
        "launcher_node_memory_limit_bytes": {"": 2},
        "launcher_gpu_utilization_ratio": {'{gpu="0"}': 0.5},
        "launcher_gpu_memory_bytes": {'{gpu="0"}': 1},
        "launcher_gpu_memory_limit_bytes": {'{gpu="0"}': 2},
        "launcher_gpu_temperature_celsius": {'{gpu="0"}': 60},
    }


def test_the_ledger_is_followed_through_restarts_elsewhere_and_half_a_line(tmp_path):
    own, other = (tmp_path / "ledger" / f"train-{node}-0-0-0.jsonl" for node in (1, 0))
    own.parent.mkdir()
    book = TrainingBook(tmp_path, tmp_path / "nodes" / "1" / "0", since=0.0)

    def write(path: Path, at: float, event: str, **values: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"at": at, "event": event, **values}) + "\n")
        os.utime(path, (at, at))

    write(other, 2.0, "train-started")
    write(other, 3.0, "loaded", step=0)
    write(other, 4.0, "first-step", step=1)
    write(other, 14.0, "progress", step=11, save_stall_s=2.0, samples=50, loss=2.0)
    write(other, 14.5, "saved", step=5)
    assert book.read_new_events() == (TrainingVitals(), {}), "told by the node that has rank 0"
    write(own, 20.0, "train-started")
    write(own, 21.0, "loaded", step=5)
    write(own, 22.0, "first-step", step=6)
    write(own, 24.0, "progress", step=8, samples=40, loss=1.5)
    with own.open("a") as file:
        file.write('{"at": "x", "event": "progress"}\nno JSON\n{"at": 27.0, "event": "prog')
    training, first = book.read_new_events()
    assert training == TrainingVitals(step=8, loss=1.5)
    assert {name: spent for name, spent in first.items() if spent} == {
        "productive": 8.0,
        "first step": 2.0,
        "load": 2.0,
        "save stall": 2.0,
        "rework": 2.0,
        "starting": 6.0 + 2.0,
    }
    with own.open("a") as file:
        file.write('ress", "step": 11, "samples": 60, "loss": null}\n')
    write(own, 27.5, "saved", step=11)
    told = TrainingVitals(step=11, loss=1.5, samples_per_s=20.0, saved_at=27.5)
    assert book.read_new_events() == (told, {**first, "rework": 5.0})
    # Its workers go on in another group: nothing that was told is taken back.
    write(own, 28.0, "train-started", heals=True)
    assert book.read_new_events()[0] == told


def test_a_record_of_a_node_is_a_value():
    assert (changeable(engine), by_place(engine)) == ({"_Worker"}, {"_Worker"})
