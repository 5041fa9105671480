import io

import pytest
import torch

from tests.waiting import StoppedClock
from train.config import TrainConfig
from train.progress import Meter, Progress, Progression, format_bar, format_duration, format_line
from train.schedule import plan_schedule

SNAPSHOT = Progression(
    epoch=2, epochs=4, step=30, stop_step=60, loss=0.12345, samples_per_s=12345.6, eta_s=65.4
)


class UnreadableLoss(torch.Tensor):
    """A loss that must not be waited for."""

    def item(self):
        raise AssertionError("the loss was read")


def make(mode, clock=None, stop=60):
    clock = clock or StoppedClock(100.0)
    meter = Meter(clock, lambda: 1e9)
    stream = io.StringIO()
    schedule = plan_schedule(
        TrainConfig(epochs=4, max_steps=stop), epoch_samples=1440, world_size=1
    )
    progress = Progress(mode, schedule, meter, global_batch_size=96, stream=stream, clock=clock)
    return progress, meter, clock, stream


def test_a_line_tells_epoch_step_loss_speed_and_time_left():
    assert format_line(SNAPSHOT) == "epoch 2/4  step 30/60  loss 0.1235  12,346 samples/s  ETA 1:05"


@pytest.mark.parametrize(
    ("width", "bar"),
    [
        (200, "  [##########..........]"),
        (len(format_line(SNAPSHOT)) + 14, "  [#####.....]"),
        (len(format_line(SNAPSHOT)) + 8, ""),
    ],
)
def test_a_bar_is_that_line_with_the_share_that_is_done_as_wide_as_there_is_room(width, bar):
    assert format_bar(SNAPSHOT, width) == format_line(SNAPSHOT) + bar


def test_a_terminal_that_is_too_narrow_cuts_the_line():
    assert format_bar(SNAPSHOT, 10) == "epoch 2/4 "


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00")]
)
def test_durations_show_hours_only_where_there_are_any(seconds, text):
    assert format_duration(seconds) == text


def test_lines_come_every_few_seconds_and_the_loss_is_not_read_between():
    progress, meter, clock, stream = make("lines")
    for step in range(1, 13):
        clock.now += 1
        meter.on_step()
        loss = torch.tensor(0.5) if step in (5, 10) else torch.ones(1).as_subclass(UnreadableLoss)
        progress.on_step(step, loss)
    assert stream.getvalue().splitlines() == [
        "epoch 1/4  step 5/60  loss 0.5000  96 samples/s  ETA 0:55",
        "epoch 1/4  step 10/60  loss 0.5000  96 samples/s  ETA 0:50",
    ]


def test_the_end_of_an_epoch_is_always_shown():
    progress, _, _, stream = make("lines")
    progress.on_epoch_end(15, 0.25)
    assert stream.getvalue().startswith("epoch 1/4  step 15/60  loss 0.2500")


def test_a_bar_is_drawn_over_itself_and_left_with_a_new_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    progress, _, _, stream = make("bar")
    progress.on_epoch_end(15, 12345.0)
    progress.on_epoch_end(30, 0.1)
    progress.close()
    first, second, end = stream.getvalue()[1:].replace("\n", "\r\n").split("\r")
    assert len(first) == len(second) == 59
    assert second.startswith("epoch 2/4  step 30/60")
    assert end == "\n"


def test_other_ranks_show_nothing_and_read_no_loss():
    progress, _, clock, stream = make(None)
    clock.now += 100
    progress.on_step(1, torch.ones(1).as_subclass(UnreadableLoss))
    progress.on_epoch_end(1, 0.5)
    progress.close()
    assert stream.getvalue() == ""


def test_the_meter_counts_from_the_start_to_the_stop():
    clock = StoppedClock(100.0)
    meter = Meter(clock, lambda: 1234.5)
    clock.now += 50
    meter.start()
    for seconds in (3, 1, 1):
        clock.now += seconds
        meter.on_step()
    meter.stop()
    clock.now += 50
    assert meter.first_step_at == 1234.5
    assert (meter.steps, meter.elapsed_s, meter.median_step_s) == (3, 5.0, 1.0)
    assert meter.steps_per_s == pytest.approx(0.6)


def test_a_meter_without_steps_is_zero_and_not_an_error():
    meter = Meter(StoppedClock(100.0))
    assert (meter.steps_per_s, meter.median_step_s, meter.first_step_at) == (0.0, 0.0, 0.0)
