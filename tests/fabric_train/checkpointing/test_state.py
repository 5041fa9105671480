import pytest
import torch

from fabric_train.checkpointing.state import digest_weights, has_finite_weights


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
