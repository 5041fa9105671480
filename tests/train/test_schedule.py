from __future__ import annotations

from fractions import Fraction

import pytest

from train.config import TrainConfig
from train.schedule import plan_schedule


def test_the_training_stops_after_all_epochs():
    schedule = plan_schedule(TrainConfig(epochs=4), batches_per_epoch=15)
    assert (schedule.total_steps, schedule.stop_step) == (60, 60)


@pytest.mark.parametrize(("max_steps", "stop_step"), [(7, 7), (60, 60), (100, 60)])
def test_max_steps_ends_it_earlier_but_never_later(max_steps, stop_step):
    schedule = plan_schedule(TrainConfig(epochs=4, max_steps=max_steps), batches_per_epoch=15)
    assert schedule.stop_step == stop_step


def test_max_steps_leaves_the_learning_rates_as_they_are():
    full = plan_schedule(TrainConfig(), batches_per_epoch=15)
    cut = plan_schedule(TrainConfig(max_steps=20), batches_per_epoch=15)
    assert [cut.lr_at(step) for step in range(20)] == [full.lr_at(step) for step in range(20)]


def test_the_learning_rate_rises_to_its_highest_and_falls_to_near_zero():
    schedule = plan_schedule(TrainConfig(lr=1.0, warmup_steps=4), batches_per_epoch=15)
    rates = [schedule.lr_at(step) for step in range(schedule.total_steps)]
    peak = rates.index(max(rates))
    assert peak == 4
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] <= 0.02


def test_without_warmup_the_first_step_has_the_full_learning_rate():
    assert plan_schedule(TrainConfig(lr=0.5, warmup_steps=0), batches_per_epoch=15).lr_at(0) == 0.5


def test_an_epoch_that_is_no_whole_number_of_batches_ends_within_one():
    schedule = plan_schedule(TrainConfig(epochs=2), batches_per_epoch=Fraction(25, 10))
    assert [schedule.epoch_of(step) for step in range(5)] == [0, 0, 0, 1, 1]
    assert (schedule.end_of(0), schedule.end_of(1), schedule.total_steps) == (3, 5, 5)
