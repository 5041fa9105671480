"""local_sgd and diloco as strategies: equal to DDP, resumed, resized, and their traffic."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fabric_train.checkpointing.state import digest_weights
from fabric_train.strategies import make_strategy
from fabric_train.strategies.local_sgd import LocalSgd
from tests.fabric_train.forked import ForkedError, run_forked
from tests.fabric_train.strategies.test_local_sgd import Training, train

ONE_IN_EVERY_CI = ["local_sgd", "diloco"]


def sgd(weights) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_meeting_at_each_step_with_plain_sgd_is_ddp_and_one_process(ranks):
    # Four ranks hold one or two of six shards, and weigh by them.
    alone = train("ddp", {}, sgd, 6)
    found = run_forked(train, ranks, "local_sgd", {"every": 1}, sgd, 6)
    for weights in found:
        for name, weight in weights.items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-5, atol=1e-6)


# -- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "warmup_steps"), [("local_sgd", 0), ("diloco", 7), ("local_sgd", 7), ("diloco", 0)]
)
def test_a_rank_killed_within_a_step_and_resumed_makes_the_undisturbed_losses(
    tmp_path, name, warmup_steps
):
    # The checkpoint of step 6 lies between the meetings after steps 4 and 8, or in the warm-up.
    options = {"every": 4, "warmup_steps": warmup_steps}

    def run(folder: Path, kill_at: int | None) -> tuple[dict[int, float], str]:
        training = Training(make_strategy(name, options), folder=folder)
        training.train(13, kill_at=kill_at)
        return training.losses, digest_weights(training.strategy.gather_weights())

    undisturbed = run_forked(run, 2, tmp_path / "undisturbed", None)
    with pytest.raises(ForkedError) as caught:
        run_forked(run, 2, tmp_path / "killed", 8)
    assert 1 in caught.value.failed
    resumed = run_forked(run, 2, tmp_path / "killed", None)
    for (losses, digest), (expected, expected_digest) in zip(resumed, undisturbed, strict=True):
        assert losses == {step: expected[step] for step in range(6, 13)}
        assert digest == expected_digest


@pytest.mark.parametrize("name", ONE_IN_EVERY_CI)
def test_another_world_goes_on_from_the_mean(tmp_path, name):
    options = {"every": 4}

    def save() -> dict[str, Tensor]:
        training = Training(make_strategy(name, options), folder=tmp_path)
        training.train(6)
        training.strategy.before_save()
        return {key: each.clone() for key, each in every_tensor(training.strategy).items()}

    def resume() -> tuple[int, dict[str, Tensor], list[str]]:
        training = Training(make_strategy(name, options), folder=tmp_path)
        started = {key: each.clone() for key, each in every_tensor(training.strategy).items()}
        step = training.step
        training.train(9)
        return step, started, training.said

    expected = run_forked(save, 2)[0]
    for ranks in (1, 3):
        for step, found, said in run_forked(resume, ranks):
            assert (step, said) == (6, [])
            assert found.keys() == expected.keys()
            for key, tensor in found.items():
                assert torch.equal(tensor, expected[key]), key
        for path in tmp_path.glob("step-0000000009*"):
            path.rename(tmp_path / f"gone-{ranks}")


def every_tensor(strategy: LocalSgd) -> dict[str, Tensor]:
    """Model, moments and outer state."""
    found = {key: each.detach() for key, each in strategy.bare.state_dict().items()}
    for name, weight in strategy.bare.named_parameters():
        moments = strategy.optimizer.state[weight]
        found |= {f"{name}.{key}": each for key, each in moments.items()}
    outer = {
        key: each
        for key, each in strategy.memory().items()
        if key.startswith(("anchor", "velocity"))
    }
    return found | outer
