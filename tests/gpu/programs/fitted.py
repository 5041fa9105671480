"""A fit by Lightning's Trainer with the callback: fitted.py STRATEGY STEPS."""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.lightning import ContinuityCallback, read_world

strategy, steps = sys.argv[1], int(sys.argv[2])


class Small(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


seed_everything(0, verbose=False)
trainer = Trainer(
    accelerator="cpu" if os.environ.get("GPU_DRY") == "1" else "cuda",
    strategy=strategy,
    max_steps=steps,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ContinuityCallback(every_n_steps=3)],
    **read_world(),
)
trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(64, 8)), 8, shuffle=True))
print(f"at step {trainer.global_step}", flush=True)
