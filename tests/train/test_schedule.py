import pytest

from train.config import TrainConfig
from train.schedule import Schedule, plan_schedule


def plan(config: TrainConfig, *, epoch_samples: int = 1440, world_size: int = 1) -> Schedule:
    return plan_schedule(config, epoch_samples=epoch_samples, world_size=world_size)


def test_the_training_stops_after_all_epochs():
    schedule = plan(TrainConfig(epochs=4))
    assert (schedule.total_steps, schedule.stop_step) == (60, 60)


@pytest.mark.parametrize(("max_steps", "stop_step"), [(7, 7), (60, 60), (100, 60)])
def test_max_steps_ends_it_earlier_but_never_later(max_steps, stop_step):
    schedule = plan(TrainConfig(epochs=4, max_steps=max_steps))
    assert schedule.stop_step == stop_step


def test_max_steps_leaves_the_learning_rates_as_they_are():
    full = plan(TrainConfig())
    cut = plan(TrainConfig(max_steps=20))
    assert [cut.lr_at(step) for step in range(20)] == [full.lr_at(step) for step in range(20)]


def test_the_learning_rate_rises_to_its_highest_and_falls_to_near_zero():
    schedule = plan(TrainConfig(lr=1.0, warmup_steps=4))
    rates = [schedule.lr_at(step) for step in range(schedule.total_steps)]
    peak = rates.index(max(rates))
    assert peak == 4
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] <= 0.02


def test_without_warmup_the_first_step_has_the_full_learning_rate():
    assert plan(TrainConfig(lr=0.5, warmup_steps=0)).lr_at(0) == 0.5


def test_an_epoch_that_is_no_whole_number_of_batches_ends_within_one():
    schedule = plan(TrainConfig(epochs=2), epoch_samples=240)
    assert [schedule.epoch_of(step) for step in range(5)] == [0, 0, 0, 1, 1]
    assert (schedule.end_of(0), schedule.end_of(1), schedule.total_steps) == (3, 5, 5)


def test_the_learning_rate_depends_on_the_samples_seen_and_not_on_how_they_were_batched():
    def rate_after(samples: int, world_size: int) -> float:
        config = TrainConfig(lr=1.0, warmup_steps=0, reduction="scaled", scale_warmup_epochs=0)
        schedule = plan(config, world_size=world_size)
        return schedule.lr_at(samples // schedule.batch_size) / world_size

    assert rate_after(768, 1) == pytest.approx(rate_after(768, 4))
    assert rate_after(768, 1) < 1


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_a_scaled_batch_grows_with_the_world_and_its_rate_by_the_rule(rule, factor):
    config = TrainConfig(
        lr=1.0, warmup_steps=0, reduction="scaled", lr_scaling=rule, scale_warmup_epochs=2
    )
    alone, four = plan(config), plan(config, world_size=4)
    assert (four.batch_size, four.epoch_samples / four.batch_size) == (384, 3.75)
    ratios = [four.lr_at(s) / alone.lr_at(4 * s) for s in range(12)]
    assert ratios[0] == 1
    assert ratios == sorted(ratios)
    # Two epochs of 3.75 steps: from the eighth on.
    assert ratios[8:] == [pytest.approx(factor)] * 4


def test_a_training_that_was_resized_goes_on_at_the_sample_it_had_come_to():
    config = TrainConfig(reduction="scaled", epochs=2)
    alone = plan(config)
    four = plan(config, world_size=4).anchored(10, alone.sample_at(10))
    assert four.sample_at(12) == 10 * 96 + 2 * 384
    assert four.end_of(0) == 12  # 480 samples are left of the epoch
    assert four.stop_step == 10 + 5
    assert [four.epoch_of(step) for step in (10, 11, 12, 14)] == [0, 0, 1, 1]
