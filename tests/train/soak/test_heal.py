"""Training programs of each kind go on in the same processes when nodes are lost and come."""

import signal

import pytest

from tests.launcher.agent.conftest import archive
from tests.launcher.agent.group import kill
from tests.launcher.agent.place import LIMIT_S
from tests.train.claims.test_heal import TRAIN, Training, lose_and_let_in, three, weights_of

__all__ = ["archive", "three"]
KINDS = {
    "loader processes": ("--num_workers", "2"),
    "a save in flight": ("--checkpoint_every_steps", "3"),
    "an evaluation each epoch": ("--val_share", "0.5", "--patience", "1000"),
    "an epoch's end each second step": ("--global_batch_size", "720"),
    "bfloat16": ("--precision", "bf16-mixed"),
    "compiled": ("--compile", "true"),
    "text": ("--workload", "charlm", "--max_steps", "200"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_of_the_undisturbed_training(kind, three, tmp_path):
    lose_and_let_in((*TRAIN, *KINDS[kind]), three, tmp_path / "alone")


def test_a_stop_at_the_moment_of_a_loss_commits_and_goes_on_later(three, tmp_path):
    group = Training(three, TRAIN)
    first, second, third = three
    group.begin()
    kill(third)
    for place in (first, second):
        assert place.process is not None
        place.process.send_signal(signal.SIGTERM)
    assert [place.process.wait(LIMIT_S) for place in (first, second)] == [143, 143]  # type: ignore[union-attr]
    assert list((tmp_path / "checkpoints").glob("step-*")), first.console()
    again = [group.start_again(place) for place in (first, second, third)]
    metrics = group.finish(*again)
    assert metrics["resumed_from_step"] > 0
    assert metrics["weights_sha256"] == weights_of(tmp_path / "alone", TRAIN)
