"""The peers of the strategies do the same work, and the formulas say what is sent."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from benchmarks import strategies, strategy_ranks
from benchmarks.measure import BenchmarkError
from benchmarks.peers import plain_strategies
from benchmarks.strategies import ACTIVATIONS, BATCH, FORMULAS, TENSOR, UNIT_WEIGHTS, WEIGHTS
from benchmarks.strategy_ranks import start, take_pair, take_rounds
from fabric_train.strategies import STRATEGIES
from train.config import parse_config
from train.workloads import charlm

COUNTERS = 20_000
"""Bytes of a step beside the strategy's own: what ranks tell each other about stops."""
FAST = {("ddp", 2)}
CASES = [
    pytest.param(name, nproc, marks=() if (name, nproc) in FAST else pytest.mark.slow)
    for name in FORMULAS
    for nproc in (1, 2, 4)
    if name != "fsdp+tp" or nproc >= TENSOR
]


@pytest.mark.parametrize(("name", "nproc"), CASES)
def test_both_sides_have_equal_losses_and_send_what_the_formula_says(
    name: str, nproc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_ranks, "ROUNDS", 1)
    pair = take_pair(name, nproc)
    ours, theirs = pair["ours"], pair["theirs"]
    # The first Q of powersgd is drawn at random.
    tolerance = 1e-2 if name == "powersgd" else 1e-5
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=tolerance)
    expected = FORMULAS[name](nproc)
    assert ours["sent"] == pytest.approx(expected, rel=0.01, abs=COUNTERS)
    # Plain code sends small weights one by one.
    assert theirs["sent"] == pytest.approx(expected, rel=0.03, abs=COUNTERS)
    assert min(ours["memory"], theirs["memory"]) > 4 * WEIGHTS / nproc
    assert ours["step_s"] > 0


def test_the_formulas_are_those_of_the_model_that_is_measured() -> None:
    config = parse_config(strategy_ranks.OPTIONS)
    model: Any = charlm.build_model(config)
    size = charlm.SIZES[config.model_size]
    assert sum(weight.numel() for weight in model.parameters()) == WEIGHTS
    assert sum(weight.numel() for weight in model.blocks.parameters()) == UNIT_WEIGHTS
    assert config.global_batch_size == BATCH
    assert size.layers == strategies.BLOCKS
    assert 4 * BATCH * size.context * size.width == ACTIVATIONS
    assert TENSOR == plain_strategies.TENSOR_RANKS


def test_each_peer_is_of_a_strategy() -> None:
    assert set(FORMULAS) == set(plain_strategies.STRATEGIES)
    assert set(FORMULAS) <= set(STRATEGIES)


def test_a_rank_that_fails_is_told_with_its_traceback() -> None:
    def fail(name: str, folder: str, watch: Any) -> None:
        raise ValueError("no weights")

    with pytest.raises(BenchmarkError, match="no weights"), start(fail, "ddp", 1) as training:
        take_rounds([training])


def test_bytes_are_those_of_the_processes_own_connections() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0] as other,
    ):
        before = strategy_ranks.read_sent()
        mine.sendall(b"x" * 1000)
        assert other.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
        assert strategy_ranks.read_sent() - before == 1000
