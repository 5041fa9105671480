from __future__ import annotations

import torch.distributed as dist

from fabric_train.agreement import Agreement
from tests.fabric_train.forked import run_forked


def test_alone_one_agrees_with_oneself():
    agreement = Agreement(2)
    assert agreement.settle() == (0, 0)
    agreement.propose((0, 5))
    assert agreement.settle() == (0, 5)
    assert agreement.settle() == (0, 0)


def test_all_ranks_learn_the_highest_wish_at_the_same_call():
    def agree() -> list[tuple[int, ...]]:
        rank, agreement, heard = dist.get_rank(), Agreement(2), []
        for step in range(6):
            heard.append(agreement.settle())
            agreement.propose((int(step == 3 + rank), rank * step))
        return [*heard, agreement.settle(), agreement.settle()]

    learned = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (0, 0)]
    assert run_forked(agree, 2) == [learned] * 2


def test_ranks_of_different_pace_exchange_at_the_same_calls_and_seldom_in_short_steps():
    def agree() -> list[tuple[int, ...]]:
        rank = dist.get_rank()
        now = 0.0
        agreement = Agreement(1, pause_s=1.0, clock=lambda: now)
        heard = []
        for step in range(1, 31):
            now += 0.125 * (1 + rank) if step <= 20 else 2.0
            heard.append(agreement.settle())
            agreement.propose((step,))
        return heard

    one, other = run_forked(agree, 2)
    assert one == other
    exchanged = [step for (step,) in one if step]
    # Four short steps of the slower rank take a second; one long one takes more.
    assert exchanged == [1, 5, 9, 13, 17, *range(21, 30)]


def test_a_step_that_takes_no_time_is_not_divided_by():
    def agree() -> list[tuple[int, ...]]:
        agreement = Agreement(1, pause_s=1.0, clock=lambda: 0.0)
        heard = []
        for step in range(1, 20):
            heard.append(agreement.settle())
            agreement.propose((step,))
        return heard

    (heard, _) = run_forked(agree, 2)
    assert [step for (step,) in heard if step] == [1, 9, 17]


def test_what_does_not_hold_on_one_rank_does_not_hold_on_any():
    def ask() -> tuple[bool, bool]:
        agreement = Agreement(1)
        # Beside an exchange, which it must not disturb.
        agreement.propose((dist.get_rank(),))
        held = agreement.hold_on_all(dist.get_rank() == 0), agreement.hold_on_all(True)
        assert agreement.settle() == (1,)
        return held

    assert run_forked(ask, 2) == [(False, True)] * 2
