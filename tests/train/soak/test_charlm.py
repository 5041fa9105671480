"""The language model: its text, its windows, its sizes."""

import pytest
import torch

from fabric_train.worker_env import WorkerEnv
from tests.train.strategy_rows import Row, run
from train.config import TrainConfig
from train.loop import train


def test_activations_that_are_computed_again_take_less_memory_and_give_the_same_bits(tmp_path):
    def train_and_weigh(recomputes: bool) -> tuple[str, int]:
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        options = {"max_steps": 3, "global_batch_size": 8, "checkpoint_activations": recomputes}
        config = TrainConfig(workload="charlm", dropout=0.2, **options)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            metrics = train(config, WorkerEnv(run_dir=tmp_path / str(recomputes)))
        return metrics["weights_sha256"], kept

    (plain, all_of_it), (again, rest) = train_and_weigh(False), train_and_weigh(True)
    assert again == plain
    assert rest < all_of_it / 2


@pytest.mark.parametrize("name", ["fsdp", "tp", "pipeline"])
def test_activations_are_computed_again_under_strategies_that_cut_the_model(tmp_path, name):
    options = ("--strategy_options.microbatches=4",) if name == "pipeline" else ()
    row, more = Row(name=name, options=options), ("--dropout=0.2",)
    plain = run(row, 2, tmp_path / "plain", options=more)
    again = run(row, 2, tmp_path / "again", options=(*more, "--checkpoint_activations=true"))
    assert again.losses == plain.losses
    assert again.metrics["weights_sha256"] == plain.metrics["weights_sha256"]
