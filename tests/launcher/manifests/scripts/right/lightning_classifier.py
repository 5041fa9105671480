import lightning as L
import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10


class CifarData(L.LightningDataModule):
    def __init__(self, root="data", batch_size=256):
        super().__init__()
        self.root, self.batch_size = root, batch_size

    def prepare_data(self):
        CIFAR10(self.root, train=True, download=True)

    def setup(self, stage):
        self.train_set = CIFAR10(self.root, train=True, transform=torchvision.transforms.ToTensor())

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, num_workers=4)


class LitResnet(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = torchvision.models.resnet18(num_classes=10)
        self.register_buffer("mean", torch.tensor([0.49, 0.48, 0.45]).view(1, 3, 1, 1))
        self.outputs = []

    def forward(self, x):
        return self.model(x - self.mean)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(7, workers=True)
    trainer = L.Trainer(max_epochs=30, accelerator="auto", devices="auto", strategy="ddp", num_nodes=2, precision="16-mixed")
    trainer.fit(LitResnet(), datamodule=CifarData(), ckpt_path="last")
