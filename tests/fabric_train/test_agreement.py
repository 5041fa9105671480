import pytest
import torch.distributed as dist

from fabric_train.agreement import Agreement
from tests.fabric_train.forked import run_forked


@pytest.mark.parametrize("grouped", [False, True])
def test_alone_one_agrees_with_oneself_at_once(grouped):
    def agree() -> list[tuple[int, ...]]:
        agreement = Agreement(2, pause_s=1.0, clock=lambda: 0.0)
        heard = [agreement.settle()]
        for wish in (5, 7):
            agreement.propose((0, wish))
            heard.append(agreement.settle())
        return [*heard, agreement.settle()]

    heard = [(0, 0), (0, 5), (0, 7), (0, 0)]
    assert (run_forked(agree, 1) if grouped else [agree()]) == [heard]


def test_all_ranks_learn_the_highest_wish_at_the_same_call():
    def agree() -> list[tuple[int, ...]]:
        rank, agreement, heard = dist.get_rank(), Agreement(2), []
        for step in range(6):
            heard.append(agreement.settle())
            agreement.propose((int(step == 3 + rank), rank * step))
        return [*heard, agreement.settle(), agreement.settle()]

    learned = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (0, 0)]
    assert run_forked(agree, 2) == [learned] * 2


@pytest.mark.parametrize(
    ("step_s", "late_step_s", "exchanged"),
    [
        # Four short steps of the slower rank take a second; one long one takes more.
        (0.125, 2.0, [1, 5, 9, 13, 17, *range(21, 30)]),
        (0.0, 0.0, [1, 9, 17, 25]),  # not divided by
    ],
)
def test_ranks_of_different_pace_exchange_at_the_same_calls_and_seldom_in_short_steps(
    step_s, late_step_s, exchanged
):
    def agree() -> list[int]:
        now = 0.0
        agreement = Agreement(1, pause_s=1.0, clock=lambda: now)
        heard = []
        for step in range(1, 31):
            now += step_s * (1 + dist.get_rank()) if step <= 20 else late_step_s
            heard += agreement.settle()
            agreement.propose((step,))
        return [step for step in heard if step]

    assert run_forked(agree, 2) == [exchanged] * 2


def test_what_does_not_hold_on_one_rank_does_not_hold_on_any():
    def ask() -> tuple[bool, bool]:
        agreement = Agreement(1)
        # Beside an exchange, which it must not disturb.
        agreement.propose((dist.get_rank(),))
        held = agreement.hold_on_all(dist.get_rank() == 0), agreement.hold_on_all(True)
        assert agreement.settle() == (1,)
        return held

    assert run_forked(ask, 2) == [(False, True)] * 2
