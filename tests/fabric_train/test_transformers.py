"""Trainings of Hugging Face's Trainer that end anywhere and go on."""

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="the transformers extra is missing")
SAMPLES = [{"inputs": torch.randn(3), "labels": torch.tensor(i % 2)} for i in range(22)]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.2), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_processes_that_the_trainer_does_not_join_are_refused(tmp_path, capfd, monkeypatch):
    from fabric_train.transformers import with_continuity

    # It sees one process, as in torchrun's where there is neither a GPU nor use_cpu.
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = transformers.Trainer(Model(8), arguments, train_dataset=SAMPLES)
    assert with_continuity(trainer, str(tmp_path)) is trainer
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        with_continuity(trainer, str(tmp_path)).train()
    errors = capfd.readouterr().err
    assert "2 processes were started, but train in groups of 1" in errors
    assert "TrainingArguments(use_cpu=" in errors
