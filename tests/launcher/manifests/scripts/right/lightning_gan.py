import torch
import torch.nn as nn
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset


class GAN(pl.LightningModule):
    def __init__(self, latent_dim=100):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(latent_dim, 784)
        self.discriminator = nn.Linear(784, 1)
        self.validation_z = torch.randn(8, latent_dim)

    def training_step(self, batch):
        (imgs,) = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(imgs.shape[0], 100).type_as(imgs)
        self.toggle_optimizer(optimizer_g)
        g_loss = -self.discriminator(self.generator(z)).mean()
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        d_loss = self.discriminator(self.generator(z).detach()).mean() - self.discriminator(imgs).mean()
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def on_validation_epoch_end(self):
        z = self.validation_z.type_as(self.generator.weight)
        self.logger.experiment.add_images("generated", self.generator(z).view(-1, 1, 28, 28), self.current_epoch)

    def configure_optimizers(self):
        return [torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.discriminator.parameters())], []


def main():
    loader = DataLoader(TensorDataset(torch.rand(1024, 784)), batch_size=64, shuffle=True)
    trainer = pl.Trainer(accelerator="gpu", devices=8, num_nodes=4, strategy="ddp_find_unused_parameters_true", max_epochs=5)
    trainer.fit(GAN(), loader)
    if trainer.is_global_zero:
        torch.save(trainer.model.state_dict(), "gan.pt")


if __name__ == "__main__":
    main()
