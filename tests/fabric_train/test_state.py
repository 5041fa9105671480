from __future__ import annotations

import torch

from fabric_train.state import digest_weights


def test_the_digest_of_the_weights_changes_with_one_bit_of_one_of_them():
    model = torch.nn.Linear(4, 2)
    before = digest_weights(model)
    assert digest_weights(model) == before
    model.weight.data[0, 0] = torch.nextafter(model.weight.data[0, 0], torch.tensor(9.0))
    assert digest_weights(model) != before
