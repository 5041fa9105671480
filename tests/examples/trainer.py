"""Ten steps with Lightning's Trainer: needs torch, lightning and torchrun, nothing else."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Tiny(LightningModule):
    """A linear model drawn towards zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        """Counts the workers that are really in the group."""
        members = self.trainer.strategy.reduce(torch.ones(1, device=self.device), reduce_op="sum")
        if int(members) != int(os.environ["WORLD_SIZE"]):
            raise RuntimeError(f"{int(members)} of {os.environ['WORLD_SIZE']} workers in the group")
        if self.global_rank == 0:
            print(f"done world_size={self.trainer.world_size}", flush=True)


def main() -> None:
    workers, workers_here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = Trainer(
        accelerator="auto",
        devices=workers_here,
        num_nodes=workers // workers_here,
        strategy="ddp",
        max_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=16))


if __name__ == "__main__":
    main()
