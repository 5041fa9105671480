"""Seeds of a place in the training, and what else the bits of a result depend on."""

import io
import random

import numpy as np
import torch

from fabric_train.determinism import (
    derive_seed,
    make_deterministic,
    read_environment,
    seed_generators,
)
from tests.fabric_train.forked import run_forked

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_every_place_has_a_seed_of_its_own():
    places = [(seed, epoch, rank) for seed in range(5) for epoch in range(5) for rank in range(5)]
    assert len({derive_seed(*place) for place in places}) == len(places)


def test_seeds_stay_within_the_32_bits_that_torch_uses():
    assert all(0 <= derive_seed(2**32 - 1, n) < 2**32 for n in range(100))


def test_torch_draws_what_its_own_manual_seed_gives():
    seed_generators(4, 2)
    drawn = torch.rand(3)
    torch.manual_seed(derive_seed(4, 2))
    assert torch.equal(torch.rand(3), drawn)


def test_ranks_draw_different_numbers_and_repeat_their_own():
    drawn = []
    for rank in (0, 1, 0):
        seed_generators(0, 0, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


def seed_devices(monkeypatch, number: int) -> list[float]:
    """What each of so many devices draws after a seeding; CPU generators stand for theirs."""
    generators = tuple(torch.Generator() for _ in range(number))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "manual_seed", generators[0].manual_seed)
    seed_generators(4, 2)
    return [torch.rand(1, generator=generator).item() for generator in generators]


def test_every_device_of_a_process_draws_numbers_of_its_own_and_repeats_them(monkeypatch):
    drawn = seed_devices(monkeypatch, 3)
    assert drawn == seed_devices(monkeypatch, 3)
    assert len(set(drawn)) == 3


def test_other_devices_do_not_change_what_the_current_one_draws(monkeypatch):
    assert seed_devices(monkeypatch, 3)[0] == seed_devices(monkeypatch, 1)[0]


def test_what_a_result_depends_on_comes_back_from_a_checkpoint_as_it_was():
    facts = read_environment(torch.device("cpu"))
    file = io.BytesIO()
    torch.save(facts, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == facts
    assert {"torch", "threads", "cpu_capability", "device_model"} <= facts.keys()


def test_the_number_of_threads_is_part_of_it():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert read_environment(torch.device("cpu"))["threads"] == str(before + 1)
    finally:
        torch.set_num_threads(before)


def test_new_memory_is_not_filled_before_a_kernel_writes_it():
    def ask() -> tuple[bool, bool]:
        make_deterministic()
        fills = torch.utils.deterministic.fill_uninitialized_memory
        return torch.are_deterministic_algorithms_enabled(), fills

    assert run_forked(ask, 1, group=False) == [(True, False)]
