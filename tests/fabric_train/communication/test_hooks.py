"""Communication hooks in a plain loop with DDP."""

import numpy as np
import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from fabric_train.communication.hooks import ByteGradHook, PowerSgdHook
from tests.fabric_train.communication import quadratic
from tests.fabric_train.communication.quadratic import Quadratic
from tests.fabric_train.forked import run_forked


def train_plainly(make_hook, bucket_cap_mb: float = 25):
    """The weights after each step of a loop that knows nothing of strategies."""
    model = Quadratic(dist.get_rank())
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_cap_mb)
    hook = make_hook(model)
    hook.attach(ddp)
    optimizer, weights = SGD(model.parameters(), lr=quadratic.LR), []
    for _ in range(quadratic.STEPS):
        ddp().backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.append(quadratic.flat(model))
    return weights


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rank", [1, 3])
def test_powersgd_is_the_algorithm_of_the_paper(ranks, rank):
    def make(model):
        return PowerSgdHook(model, matrix_approximation_rank=rank, start_powerSGD_iter=3)

    expected = list(quadratic.run_powersgd(ranks, rank, 3))
    for place, weights in enumerate(run_forked(train_plainly, ranks, make)):
        for step in range(quadratic.STEPS):
            np.testing.assert_allclose(weights[step], expected[step][place], atol=3e-5)


@pytest.mark.parametrize("make", [lambda model: ByteGradHook(), PowerSgdHook])
def test_several_buckets_are_sent_in_one_order_on_all_ranks(make):
    for weights in run_forked(train_plainly, 4, make, 0.001):
        expected = list(quadratic.run_mean(4))
        np.testing.assert_allclose(weights[-1], expected[-1][0], atol=0.1)
