import math

import pytest
import torch

from fabric_train.checkpointing.state import TrainState, digest_weights, has_finite_weights


def test_the_digest_of_the_weights_changes_with_one_bit_of_one_of_them():
    model = torch.nn.Linear(4, 2)
    before = digest_weights(model)
    assert digest_weights(model) == before
    model.weight.data[0, 0] = torch.nextafter(model.weight.data[0, 0], torch.tensor(9.0))
    assert digest_weights(model) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("spoilt", ["nan", "inf", "-inf"])
def test_one_weight_without_a_number_is_found(dtype, spoilt):
    model = torch.nn.Linear(4, 2).to(dtype)
    model.bias.data[1] = torch.finfo(dtype).max
    assert has_finite_weights(model)
    model.weight.data[1, 2] = float(spoilt)
    assert not has_finite_weights(model)


def test_a_model_without_numbers_is_finite():
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(0))])
    assert has_finite_weights(model)
    assert has_finite_weights(torch.nn.ReLU())
    assert has_finite_weights(torch.nn.Linear(4, 2, bias=False))


@pytest.mark.parametrize("loss", [0.25, math.nan])
def test_what_is_kept_beside_the_tensors_comes_back(loss):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept, loaded = (TrainState(model=model, optimizer=optimizer) for _ in range(2))
    kept.step, kept.train_loss, kept.sample, kept.best_loss = 7, loss, 3, 0.5
    loaded.load_state_dict(kept.state_dict())
    assert loaded.train_loss == pytest.approx(loss, nan_ok=True)
    assert (loaded.step, loaded.sample, loaded.best_loss) == (7, 3, 0.5)
