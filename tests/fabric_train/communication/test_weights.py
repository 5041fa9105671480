"""Averages of weights and momenta in a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD, AdamW

from fabric_train.communication.decentralized import LowPrecisionRing, PeerAverage, find_peer
from fabric_train.communication.qadam import QAdamSteps
from tests.fabric_train.communication import quadratic
from tests.fabric_train.communication.quadratic import Quadratic
from tests.fabric_train.forked import run_forked


def check(found, expected, atol):
    for rank, seen in enumerate(found):
        for step, each in enumerate(expected):
            np.testing.assert_allclose(seen[step], each[rank], atol=atol, err_msg=f"{step=}")


def train_decentralized(peers, interval):
    model, seen = Quadratic(dist.get_rank()), []
    average = PeerAverage(list(model.parameters()), peers=peers)
    optimizer = SGD(model.parameters(), lr=quadratic.LR)
    for step in range(quadratic.STEPS):
        if step % interval == 0:
            average.start(step // interval)
        optimizer.zero_grad()
        model().backward()
        average.finish()
        optimizer.step()
        seen.append(quadratic.flat(model))
    return seen


@pytest.mark.parametrize(
    ("ranks", "peers", "interval"),
    [(2, "all", 1), (4, "all", 2), (2, "shift_one", 1), (4, "shift_one", 1), (4, "shift_one", 2)],
)
def test_decentralized_is_d_psgd(ranks, peers, interval):
    found = run_forked(train_decentralized, ranks, peers, interval)
    check(found, list(quadratic.run_decentralized(ranks, peers, interval)), 2e-5)


@pytest.mark.parametrize("ranks", [2, 4, 8, 10])
def test_shift_one_pairs_all_ranks_with_another_one_each_time(ranks):
    met = {rank: set() for rank in range(ranks)}
    for number in range(ranks):
        for rank in range(ranks):
            peer = find_peer(rank, ranks, number)
            assert peer != rank
            assert find_peer(peer, ranks, number) == rank
            met[rank].add(peer)
    assert all(len(peers) == ranks // 2 for peers in met.values())


def train_ring():
    model, seen = Quadratic(dist.get_rank()), []
    ring = LowPrecisionRing(list(model.parameters()))
    optimizer = SGD(model.parameters(), lr=quadratic.LR)
    for _ in range(quadratic.STEPS):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        ring.mix()
        seen.append(quadratic.flat(model))
    return seen


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_low_precision_decentralized_is_dcd_psgd(ranks):
    # Where numpy and torch round a number to neighbouring steps, they differ by one step of 1/255.
    found, expected = run_forked(train_ring, ranks), list(quadratic.run_ring(ranks))
    check(found, expected, 0.05)
    for rank, seen in enumerate(found):
        apart = np.abs(seen[-1] - expected[-1][rank])
        assert np.mean(apart > 1e-4) < 0.01, np.sort(apart)[-20:]


def train_qadam(warmup, bits, feedback):
    model, seen = Quadratic(dist.get_rank()), []
    optimizer = QAdamSteps(
        AdamW(model.parameters(), lr=quadratic.LR, weight_decay=0.05),
        warmup_steps=warmup,
        bits=bits,
        error_feedback=feedback,
    )
    for _ in range(quadratic.STEPS):
        optimizer.optimizer.zero_grad()
        model().backward()
        optimizer.average_gradients()
        optimizer.step()
        seen.append(quadratic.flat(model))
    return seen


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("bits", "feedback"), [(8, False), (8, True), (1, True)])
def test_qadam_is_1_bit_adam(ranks, bits, feedback):
    found = run_forked(train_qadam, ranks, 5, bits, feedback)
    expected = list(quadratic.run_qadam(ranks, 5, bits, feedback))
    check([seen[:5] for seen in found], expected[:5], 1e-5)
    for rank, seen in enumerate(found):
        apart = np.abs(seen[-1] - expected[-1][rank])
        assert np.mean(apart > 1e-3) < 0.01, np.sort(apart)[-20:]
    assert all(np.array_equal(found[0][-1], seen[-1]) for seen in found)


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
    ("make", "told"),
    [
        (lambda w: SGD(w, lr=1), "takes Adam or AdamW, not SGD"),
        (lambda w: AdamW(w, amsgrad=True), "without amsgrad"),
    ],
)
def test_qadam_refuses_other_optimizers(make, told):
    with pytest.raises(ValueError, match=told):
        QAdamSteps(make([torch.nn.Parameter(torch.ones(2))]), warmup_steps=1)
