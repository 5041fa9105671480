from __future__ import annotations

import dataclasses

import pytest
import torch

from train.config import TrainConfig
from train.errors import InputError
from train.randomness import capture_generators, seed_generators
from train.state import TrainState, capture_state, check_fits, digest_weights, restore_state

CPU = torch.device("cpu")
FACTS = {"dataset": "abc"}


def make_state(inputs: int = 4) -> TrainState:
    model = torch.nn.Linear(inputs, 2)
    return TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))


def train_a_step(state: TrainState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.rand(3, 4)).square().mean().backward()
    state.optimizer.step()
    state.step += 1


def capture(state: TrainState, world_size: int = 1) -> dict:
    generators = [capture_generators(CPU) for _ in range(world_size)]
    return capture_state(state, TrainConfig(), epoch=0, generators=generators, facts=FACTS)


def restore(payload: dict, state: TrainState, *, rank: int = 0, world_size: int = 1) -> None:
    restore_state(payload, state, seed=0, rank=rank, world_size=world_size, device=CPU)


def test_a_restored_state_goes_on_bit_for_bit(tmp_path):
    original, other = make_state(), make_state()
    train_a_step(original)
    torch.save(capture(original), tmp_path / "state.pt")
    train_a_step(original)

    restore(torch.load(tmp_path / "state.pt", weights_only=True), other)
    assert other.step == 1
    train_a_step(other)
    assert torch.equal(original.model.weight, other.model.weight)


def test_a_world_of_another_size_draws_numbers_that_no_rank_repeats():
    state = make_state()
    payload = capture(state, world_size=2)
    drawn = set()
    for rank in range(3):
        restore(payload, state, rank=rank, world_size=3)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 3


def test_a_world_of_the_same_size_continues_each_ranks_numbers():
    seed_generators(7)
    state = make_state()
    payload = capture(state)
    expected = torch.rand(1)
    restore(payload, state)
    assert torch.equal(torch.rand(1), expected)


def test_the_same_training_fits_also_if_it_goes_on_longer_elsewhere():
    state = make_state()
    longer = dataclasses.replace(TrainConfig(), epochs=99, max_steps=5, accelerator="cpu")
    check_fits(capture(state), state, longer, FACTS)


def test_options_that_differ_are_all_named_with_both_values():
    state = make_state()
    other = dataclasses.replace(TrainConfig(), lr=0.5, seed=3)
    with pytest.raises(InputError) as refused:
        check_fits(capture(state), state, other, FACTS)
    assert "lr is 0.5, was 0.003; seed is 3, was 0" in str(refused.value)
    assert "--checkpoint_dir" in str(refused.value)


def test_weights_that_differ_are_named_with_both_shapes():
    with pytest.raises(InputError, match=r"weight is \(2, 5\), was \(2, 4\)"):
        check_fits(capture(make_state()), make_state(5), TrainConfig(), FACTS)


def test_an_option_that_the_checkpoint_does_not_know_is_named():
    state = make_state()
    payload = capture(state)
    del payload["config"]["warmup_steps"]
    with pytest.raises(InputError, match="warmup_steps is 30, was absent"):
        check_fits(payload, state, TrainConfig(), FACTS)


def test_a_checkpoint_from_before_virtual_shards_is_refused_by_what_it_lacks():
    # Its samples came in another order: going on would see some twice and others never.
    payload = capture(make_state())
    del payload["facts"], payload["sample"]
    for name in ("reduction", "virtual_shards"):
        del payload["config"][name]
    with pytest.raises(InputError, match=r"reduction is fast, was absent.*dataset is abc, was abs"):
        check_fits(payload, make_state(), TrainConfig(virtual_shards=1), FACTS)


def test_a_changed_data_set_is_refused_by_name():
    state = make_state()
    with pytest.raises(InputError, match="dataset is xyz, was abc"):
        check_fits(capture(state), state, TrainConfig(), {"dataset": "xyz"})


def test_the_digest_of_the_weights_changes_with_one_bit_of_one_of_them():
    model = make_state().model
    before = digest_weights(model)
    assert digest_weights(model) == before
    model.weight.data[0, 0] = torch.nextafter(model.weight.data[0, 0], torch.tensor(9.0))
    assert digest_weights(model) != before
