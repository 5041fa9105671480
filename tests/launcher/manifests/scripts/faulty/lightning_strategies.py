import torch
from lightning.pytorch import LightningModule, Trainer, Callback


class Progress(Callback):
    def on_epoch_end(self, trainer, module):  # fault: lightning-dropped
        print(trainer.current_epoch)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


def train(loader, kind):
    if kind == "tpu":
        trainer = Trainer(tpu_cores=8)  # fault: lightning-dropped
    elif kind == "horovod":
        trainer = Trainer(strategy="horovod", devices=1)  # fault: lightning-dropped
    elif kind == "amp":
        trainer = Trainer(use_amp=True)  # fault: lightning-dropped
    elif kind == "old":
        trainer = Trainer(accelerator="gpu", devices=8, strategy="ddp2")  # fault: lightning-dropped
    else:
        trainer = Trainer(accelerator="gpu", devices=2, strategy="dp", callbacks=[Progress()])  # fault: lightning-dropped
    trainer.fit(Model(), loader)
    if trainer.global_rank == 0:
        trainer.save_checkpoint("final.ckpt")  # fault: some-ranks-only


train(torch.utils.data.DataLoader(torch.randn(64, 32), batch_size=2), "old")
