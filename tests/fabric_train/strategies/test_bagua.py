"""Compressed and decentralised strategies on a small quadratic, beside their published rules."""

from functools import partial

import numpy as np
import pytest
import torch

from fabric_train.errors import InputError
from fabric_train.strategies import STRATEGIES, make_strategy
from fabric_train.strategies.strategy import Place
from tests.fabric_train.communication import quadratic
from tests.fabric_train.forked import run_forked, world_of
from tests.fabric_train.strategies.quadratic_loop import train

QADAM = partial(quadratic.run_qadam, warmup=5)
POWER = {"matrix_approximation_rank": 3, "start_powerSGD_iter": 3}
CASES = {
    "fp16": ({}, quadratic.run_mean),
    "powersgd": (POWER, partial(quadratic.run_powersgd, rank=3, plain_steps=3)),
    "bagua:gradient_allreduce": ({}, quadratic.run_mean),
    "bagua:bytegrad": ({}, quadratic.run_bytegrad),
    "bagua:decentralized": ({}, partial(quadratic.run_decentralized, peers="all", interval=1)),
    "bagua:low_precision_decentralized": ({}, quadratic.run_ring),
    "bagua:qadam": ({"warmup_steps": 5}, partial(QADAM, bits=8, feedback=True)),
}
"""Options, and the rule that the weights follow."""
ALL = {name: options for name, (options, _) in CASES.items()} | {
    "bagua:async": {"sync_interval_ms": 0}
}


def test_in_a_larger_world_powersgd_goes_on_with_the_mean_of_the_errors(tmp_path):
    go = partial(train, "powersgd", POWER, steps=8, folder=tmp_path)
    before, after = run_forked(partial(go, save_at=[8]), 2), run_forked(go, 4)
    mean = (before[0]["memory"]["error.matrix"] + before[1]["memory"]["error.matrix"]) / 2
    assert np.abs(mean).max() > 0.1
    for result in after:
        np.testing.assert_allclose(result["memory"]["error.matrix"], mean, atol=1e-6)
        np.testing.assert_array_equal(result["memory"]["q.matrix"], before[0]["memory"]["q.matrix"])
        assert result["memory"]["iteration"] == 8


def test_in_a_larger_world_qadam_goes_on_with_the_mean_of_the_errors(tmp_path):
    options = {"warmup_steps": 5, "bits": 1}
    go = partial(train, "bagua:qadam", options, steps=8, folder=tmp_path, adam=True)
    before, after = run_forked(partial(go, save_at=[8]), 2), run_forked(go, 3)
    own = np.mean([result["memory"]["error"][0, :7] for result in before], axis=0)
    for result in after:
        got = result["memory"]["error"][0, :7]
        np.testing.assert_allclose(got, own, atol=1e-5)
        assert result["memory"]["frozen_at"] == 5
    servers = [
        np.concatenate([result["memory"]["mean_error"][0] for result in world])[:7]
        for world in (before, after)
    ]
    np.testing.assert_array_equal(*servers)
    assert np.abs(own).max() > 0.01
    assert np.abs(servers[0]).max() > 0.01


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() & (ALL.keys() | {"bf16"})))
def test_a_process_alone_trains_as_it_would_without(name):
    one = train(name, ALL.get(name, {}), adam=True)
    plain = train("ddp", {}, adam=True)
    frozen = name == "bagua:qadam"
    for step, loss in plain["losses"].items():
        if not frozen or step <= 5:
            assert one["losses"][step] == loss


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bf16", {}, "--strategy fp16, which sends as few bytes"),
        ("bagua:decentralized", {"peer_selection_mode": "shift_one"}, "an even number of"),
        ("bagua:decentralized", {"communication_interval": 0}, "communication_interval 1 or more"),
        ("bagua:qadam", {"bits": 1, "error_feedback": False}, "does not converge"),
        ("bagua:qadam", {"warmup_steps": 0}, "warmup_steps 1 or more"),
        ("powersgd", {"matrix_approximation_rank": 0}, "matrix_approximation_rank 1 or more"),
        ("bagua:async", {"timeout_s": 0}, "timeout_s 1 or more"),
    ],
)
def test_what_cannot_run_is_refused_with_what_to_write(name, options, message):
    with pytest.raises(InputError) as caught:
        make_strategy(name, options).check(world_of(3), "cpu")
    assert message in str(caught.value)


def test_qadam_refuses_an_optimizer_that_is_not_adam():
    strategy = make_strategy("bagua:qadam")
    with pytest.raises(InputError, match="not SGD"):
        strategy.setup(
            torch.nn.Linear(2, 2),
            lambda weights: torch.optim.SGD(weights, lr=1),
            Place(device=torch.device("cpu")),
        )
