from argparse import ArgumentParser
import torch
from torch.nn import functional as F
import pytorch_lightning as pl
from pytorch_lightning.metrics import Accuracy  # fault: lightning-dropped
from torch.utils.data import DataLoader, random_split
from torchvision.datasets import MNIST


class LitClassifier(pl.LightningModule):
    def __init__(self, hidden=128):
        super().__init__()
        self.l1 = torch.nn.Linear(784, hidden)
        self.class_weights = torch.ones(10)  # fault: tensor-not-buffer
        self.accuracy = Accuracy()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.l1(x.flatten(1)), y, weight=self.class_weights)}

    def training_step_end(self, outputs):  # fault: lightning-dropped
        return outputs["loss"].mean()

    def validation_epoch_end(self, outputs):  # fault: lightning-dropped
        self.log("val", torch.stack(outputs).mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def cli_main():
    parser = ArgumentParser()
    parser = pl.Trainer.add_argparse_args(parser)  # fault: lightning-dropped
    args = parser.parse_args()
    dataset = MNIST("data", train=True, download=True)  # fault: download-by-all
    train, val = random_split(dataset, [55000, 5000])
    trainer = pl.Trainer(
        gpus=4,  # fault: lightning-dropped
        distributed_backend="ddp",  # fault: lightning-dropped
        auto_select_gpus=True,  # fault: lightning-dropped
        replace_sampler_ddp=False,  # fault: lightning-dropped
        max_epochs=3,
    )
    trainer.fit(LitClassifier(), DataLoader(train, batch_size=32), DataLoader(val, batch_size=32))


if __name__ == "__main__":
    cli_main()
