"""A LightningCLI project: all its settings, the safety too, are in config.yaml.

launcher run main.py --nproc-per-node 2 --set checkpoint_dir=checkpoints -- fit --config config.yaml
"""

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.lightning import read_world


class Regression(LightningModule):
    """A small network; optimizer and schedule come from config.yaml."""

    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1)
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss


class Waves(LightningDataModule):
    """Inputs and a function of them."""

    def __init__(self, samples: int = 480, batch_size: int = 12, workers: int = 0) -> None:
        super().__init__()
        self.samples, self.batch_size, self.workers = samples, batch_size, workers

    def train_dataloader(self) -> DataLoader:
        """Shuffled."""
        inputs = torch.randn(self.samples, 8, generator=torch.Generator().manual_seed(0))
        return DataLoader(
            TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)),
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )


if __name__ == "__main__":
    LightningCLI(Regression, Waves, trainer_defaults=read_world(), save_config_callback=None)
