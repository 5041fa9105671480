"""What frozen Adam does beside its published rule (see test_bagua)."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD, AdamW

from fabric_train.communication.qadam import QAdamSteps
from tests.fabric_train.communication import quadratic
from tests.fabric_train.communication.quadratic import Quadratic
from tests.fabric_train.forked import run_forked


def test_qadam_leaves_weights_alone_that_never_had_a_gradient():
    def train():
        model = Quadratic(dist.get_rank())
        model.scale[:100] = 0
        optimizer = QAdamSteps(
            AdamW(model.parameters(), lr=0.1, weight_decay=0), warmup_steps=2, bits=1
        )
        for _ in range(6):
            optimizer.optimizer.zero_grad()
            model().backward()
            optimizer.average_gradients()
            optimizer.step()
        return quadratic.flat(model)

    for weights in run_forked(train, 2):
        np.testing.assert_array_equal(weights[:100], quadratic.make_start()[:100])
        assert np.abs(weights).max() < 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: SGD(w, lr=1), "takes Adam or AdamW, not SGD"),
        (lambda w: AdamW(w, amsgrad=True), "without amsgrad"),
    ],
)
def test_qadam_refuses_other_optimizers(make, message):
    with pytest.raises(ValueError, match=message):
        QAdamSteps(make([torch.nn.Parameter(torch.ones(2))]), warmup_steps=1)
