"""What a training may continue from."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import train.loop
from fabric_train.strategies import STRATEGIES
from fabric_train.strategies.ddp import Ddp
from tests.fabric_train.forked import ForkedError
from tests.train.strategy_rows import Row, run


@dataclass
class Fixed(Ddp):
    """A strategy that goes on only with the number of processes that it began with."""

    name: ClassVar[str] = "fixed"
    can_resize: ClassVar[bool] = False


ROW = Row(name="fixed")


@pytest.fixture(autouse=True)
def known(monkeypatch) -> None:
    monkeypatch.setitem(STRATEGIES, ROW.name, "nowhere:Fixed")
    choose = train.loop.choose_strategy
    monkeypatch.setattr(
        train.loop,
        "choose_strategy",
        lambda config: Fixed() if config.strategy == ROW.name else choose(config),
    )


def test_a_strategy_that_cannot_follow_a_resize_stops_with_the_reason(tmp_path):
    run(ROW, 1, tmp_path, steps=2)
    with pytest.raises(ForkedError) as caught:
        run(ROW, 2, tmp_path, steps=4)
    told = str(caught.value)
    assert "--strategy fixed cannot go on with another number of processes" in told
    assert "1 wrote the checkpoint of step 2, and now there are 2" in told
    assert "start as many as 1, or go on with --strategy ddp" in told
    # Nothing was trained, and the number that it had is welcome.
    assert run(ROW, 1, tmp_path, steps=4).metrics["resumed_from_step"] == 2


def test_a_training_that_began_with_too_few_shards_gets_more_of_them(tmp_path):
    free = ("--virtual_shards=null",)
    run(Row(name="tp"), 2, tmp_path, steps=2, options=free)
    with pytest.raises(ForkedError, match="go on with --strategy ddp"):
        run(Row(name="tp"), 1, tmp_path, steps=4, options=free)
    # Two processes of tp were one replica; the fix of its message works.
    resumed = run(Row(name="ddp"), 3, tmp_path, steps=4, options=free)
    assert resumed.metrics["resumed_from_step"] == 2
    with pytest.raises(ForkedError, match="virtual_shards is 8, but 4"):
        run(Row(name="ddp"), 3, tmp_path, steps=6, options=("--virtual_shards=8",))
    assert run(Row(name="ddp"), 1, tmp_path, steps=6).metrics["resumed_from_step"] == 4


def test_another_strategys_checkpoint_binds_it_to_no_number(tmp_path):
    run(Row(name="ddp"), 1, tmp_path, steps=2)
    assert run(ROW, 2, tmp_path, steps=4).metrics["resumed_from_step"] == 2
    assert run(Row(name="ddp"), 1, tmp_path, steps=6).metrics["resumed_from_step"] == 4
