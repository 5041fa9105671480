"""The parts of a step, and how much of a device it uses."""

import time

import torch
from torch import nn

from fabric_train.breakdown import Breakdown, count_flops, measure_utilization, read_communication
from fabric_train.strategies.strategy import Place, RankBatch, Strategy
from tests.fabric_train.forked import run_forked
from train.config import TrainConfig
from train.workloads import WORKLOADS


def wait(seconds, value):
    time.sleep(seconds)
    return value


def read_slowly():
    for _ in range(2):
        yield wait(0.04, (torch.ones(2, 3), torch.ones(2)))


class Slow(nn.Linear):
    def forward(self, inputs):
        return wait(0.02, super().forward(inputs))


def test_the_parts_of_a_step_add_up_to_the_step_and_each_has_its_own():
    strategy = Strategy()
    strategy.setup(
        Slow(3, 1),
        lambda weights: torch.optim.SGD(weights),
        Place(device=torch.device("cpu")),
        virtual_shards=2,
    )
    batch = RankBatch(
        shards=(0, 1), batches=read_slowly(), loss=lambda out, to: (out[:, 0] - to).mean()
    )
    plain = strategy.bare.weight.detach().clone()
    began = time.perf_counter()
    breakdown = Breakdown(torch.device("cpu"))
    strategy.run_step(breakdown.watch(batch))
    breakdown.end("backward_s")
    strategy.step(0)
    breakdown.end("optimizer_s")
    took = time.perf_counter() - began
    parts = breakdown.parts
    assert parts["data_s"] >= 0.08
    assert parts["forward_s"] >= 0.04
    assert min(parts.values()) > 0
    assert 0.12 <= sum(parts.values()) <= took
    assert not torch.equal(plain, strategy.bare.weight)
    assert read_communication(strategy.model) == {}


def communicate() -> float:
    model = nn.parallel.DistributedDataParallel(nn.Linear(1000, 1000))
    for _ in range(3):
        model(torch.ones(1, 1000)).sum().backward()
    told = model._get_ddp_logging_data()
    assert told["avg_backward_comm_time"] > 0
    return read_communication(model)["communication_s"]


def test_ddp_tells_how_long_gradients_travelled_alone():
    # Zero where all of it was hidden behind the backward pass.
    assert all(seconds >= 0 for seconds in run_forked(communicate, 2))


def test_operations_are_counted_where_a_devices_peak_is_known(monkeypatch):
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Dropout(0.5), nn.Linear(20, 5))
    assert count_flops(model, torch.ones(1, 10)) == 3 * 2 * (10 * 20 + 20 * 5)
    sample, device = torch.ones(1, 10), torch.device("cpu")
    assert measure_utilization(lambda: model, sample, device, "32-true", 2) == 0
    monkeypatch.setattr("fabric_train.breakdown.read_peak", lambda device, precision: 450_000)
    for name, workload in WORKLOADS.items():
        build, config = workload.build_model, TrainConfig()
        _, samples = workload.load(config)
        used = measure_utilization(
            lambda build=build, config=config: build(config),
            samples.tensors[0][:1],
            device,
            "32-true",
            2,
        )
        real = count_flops(build(config), samples.tensors[0][:1])
        # The CPU's fused attention is not counted.
        flops = round(used * 900_000)
        assert flops > real if name == "charlm" else flops == real
