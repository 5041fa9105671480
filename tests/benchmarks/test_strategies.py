"""The peers of the strategies do the same work, and the formulas say what is sent."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import strategies, strategy_ranks
from benchmarks.peers import plain_strategies
from benchmarks.strategies import (
    ACTIVATIONS,
    BATCH,
    FORMULAS,
    TENSOR,
    UNIT_WEIGHTS,
    WEIGHTS,
    measure_one,
)
from benchmarks.strategy_ranks import take_sample, train_ours, train_theirs
from fabric_train.strategies import STRATEGIES
from train.config import parse_config
from train.workloads import charlm

COUNTERS = 20_000
"""Bytes of a step beside the strategy's own: what ranks tell each other about stops."""
FAST = {("ddp", 2), ("fsdp+tp", 2)}
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
    ours, theirs = (take_sample(side, name, nproc) for side in (train_ours, train_theirs))
    # The first Q of powersgd is drawn at random.
    tolerance = 1e-2 if name == "powersgd" else 1e-5
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=tolerance)
    expected = FORMULAS[name](nproc)
    assert ours["sent"] == pytest.approx(expected, rel=0.01, abs=COUNTERS)
    if name != "ddp2":  # torch's gather sends gradients to each rank alone
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
    assert (strategies.EVERY, TENSOR) == (plain_strategies.EVERY, plain_strategies.TENSOR_RANKS)


def test_each_peer_is_of_a_strategy() -> None:
    assert set(FORMULAS) == set(plain_strategies.STRATEGIES)
    assert set(FORMULAS) <= set(STRATEGIES)


def sample(step_s: float) -> dict[str, Any]:
    return {"step_s": step_s, "memory": 50e6, "sent": 3.3e6, "losses": []}


def test_the_rows_have_both_sides_and_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"ours": [sample(0.1), sample(0.1)], "theirs": [sample(0.1), sample(0.1)]}
    monkeypatch.setattr(strategies, "read_samples", lambda *arguments: samples)
    step, memory, sent = measure_one("ddp", 2, 2, 2)
    assert step.interval == (1.0, 1.0)
    assert step.ok
    assert memory.ok
    assert "80 samples/s, theirs 80, by 2 pairs; bytes by the formula 3.30" in step.note
    assert (memory.ours.unit, memory.ours.median_s, sent.ours.median_s) == ("MB", 50.0, 3.3)


def test_samples_are_taken_until_the_interval_is_narrow_or_the_limit_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(first: Callable[[int], float]) -> int:
        taken: list[str] = []

        def take(side: Any, name: str, nproc: int) -> dict[str, Any]:
            taken.append(side.__name__)
            return sample(first(len(taken)))

        monkeypatch.setattr(strategy_ranks, "take_sample", take)
        samples = strategy_ranks.measure("ddp", 2, 3, 8)
        assert taken == ["train_ours", "train_theirs"] * (len(samples["ours"]) + 1)
        return len(samples["ours"])

    assert count(lambda number: 0.1) == 3
    assert count(lambda number: 0.1 * (1 + number % 5)) == 8


def test_a_rank_that_fails_is_told_with_its_traceback() -> None:
    def fail(name: str, folder: str, watch: Any) -> None:
        raise ValueError("no weights")

    with pytest.raises(strategy_ranks.BenchmarkError, match="no weights"):
        take_sample(fail, "ddp", 1)


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
