"""DistributedOptimizer in two forked ranks, against one process on the whole batch."""

import numpy as np
import pytest
import torch
from torch import nn

import fabric_train.horovod as hvd
from tests.fabric_train.horovod.test_adasum import tree_sum
from tests.fabric_train.horovod.test_operations import run


@pytest.mark.parametrize("world", [2, 4])
def test_adasum_combines_the_changes_of_each_rank_as_numpy_does(world):
    inputs = np.random.default_rng(0).normal(size=(3, 4, 6, 3))

    def combine() -> np.ndarray:
        model = nn.Linear(3, 1, bias=False).double()
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
        )
        for step in range(3):
            optimizer.zero_grad()
            for half in torch.tensor(inputs[step, hvd.rank()]).split(3):
                (model(half) ** 2).sum().backward()
            optimizer.step()
        return model.weight.detach().numpy()

    weight, momenta = np.ones((1, 3)), [np.zeros((1, 3)) for _ in range(world)]
    for step in range(3):
        changes = []
        for rank in range(world):
            x = inputs[step, rank]
            momenta[rank] = 0.9 * momenta[rank] + 2 * (x @ weight.T).T @ x
            changes.append(-0.1 * momenta[rank])
        weight = weight + tree_sum(changes)
    for result in run(combine, world):
        np.testing.assert_allclose(result, weight, rtol=1e-12)
