"""A training with Lightning's Trainer that survives what clusters do to it.

    launcher run examples/lightning_trainer.py --nproc-per-node 2 --set checkpoint_dir=checkpoints

What comes from this project is marked with ``# safe``; all else is a script as people write it.
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.lightning import ContinuityCallback, read_world  # safe


class Regression(LightningModule):
    """A small network with dropout, whose learning rate follows the validation's loss."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 1))

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """Logs the loss of one batch."""
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """Adam, with a smaller step where the validation's loss rests."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


def make_loader(samples: int, batch_size: int, workers: int, *, shuffle: bool) -> DataLoader:
    """Inputs and a noisy function of them."""
    generator = torch.Generator().manual_seed(samples)
    inputs = torch.randn(samples, 8, generator=generator)
    targets = inputs.sin().sum(1, keepdim=True)
    return DataLoader(
        TensorDataset(inputs, targets),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        drop_last=shuffle,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    seed_everything(1, verbose=False)
    trainer = Trainer(
        accelerator="auto",
        max_epochs=options.epochs,
        log_every_n_steps=1,
        logger=CSVLogger("logs"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            EarlyStopping("val_loss", patience=3),
            ContinuityCallback(),  # safe
        ],
        **read_world(),  # safe
    )
    trainer.fit(
        Regression(options.dropout),
        make_loader(490, options.batch_size, options.workers, shuffle=True),
        make_loader(96, 16, 0, shuffle=False),
    )
    if trainer.is_global_zero:
        print(f"done: {trainer.global_step} steps, {trainer.world_size} processes", flush=True)


if __name__ == "__main__":
    main()
