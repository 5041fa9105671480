from pathlib import Path

import pytest
import torch

from fabric_train.errors import InputError
from fabric_train.launch.fabric import choose_accelerator
from tests.fabric_train.forked import world_of

PROGRAMS = Path(__file__).parent / "programs"
TWO_HERE = world_of(4, local=2)


@pytest.mark.parametrize(
    ("asked", "devices", "world", "chosen"),
    [
        ("auto", 0, None, "cpu"),
        ("auto", 1, None, "cuda"),
        ("auto", 2, TWO_HERE, "cuda"),
        ("cpu", 2, TWO_HERE, "cpu"),
        ("cuda", 8, TWO_HERE, "cuda"),
    ],
)
def test_the_accelerator_follows_from_the_option_and_the_devices(
    monkeypatch, asked, devices, world, chosen
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert choose_accelerator(asked, world) == chosen


@pytest.mark.parametrize(
    ("asked", "devices", "world"), [("cuda", 0, None), ("cuda", 1, TWO_HERE), ("auto", 1, TWO_HERE)]
)
def test_fewer_devices_than_workers_are_refused_with_the_way_out(
    monkeypatch, asked, devices, world
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(InputError, match=rf"(?s)but {devices} CUDA.*fix: --accelerator cpu"):
        choose_accelerator(asked, world)


def test_fabric_does_not_set_the_threads_to_the_number_of_cores(processes, finish):
    # torchrun sets OMP_NUM_THREADS for several workers alone.
    code, out, err = finish(processes.fork(str(PROGRAMS / "threads.py"), ranks=1))
    assert code == 0, err
    assert out == "threads 1, for others 1\n"
