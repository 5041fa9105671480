"""Fits that end anywhere and go on, compared with one that was not disturbed."""

import csv
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler
from torchmetrics import MeanMetric

from fabric_train.errors import DivergedError
from fabric_train.lightning import ContinuityCallback
from fabric_train.trainers import Companion

SAMPLES = 22


class Numbers(Dataset[torch.Tensor]):
    """Samples with noise, which is drawn when they are read; ``read`` holds their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), *(index / SAMPLES + 0.1 * torch.randn(3)).tolist()])


class Source(IterableDataset[torch.Tensor]):
    """The same without noise, in order, with a seek."""

    def __len__(self) -> int:
        return SAMPLES

    def read_from(self, position: int) -> Any:
        return (torch.full((4,), float(index)) / SAMPLES for index in range(position, SAMPLES))

    def __iter__(self) -> Any:
        return self.read_from(0)


class Stream(IterableDataset[torch.Tensor]):
    """The same again without a seek or a length."""

    def __iter__(self) -> Any:
        return Source().read_from(0)


class Model(LightningModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.2), nn.Linear(width, 1))
        self.mean = MeanMetric()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.net(batch[:, 1:]).square().mean()
        self.mean(loss)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("seen", batch[:, 0].sum(), on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("val", self.net(batch[:, 1:]).square().mean() + torch.rand(()) / 100)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        if self.trainer.max_steps < 0:  # as many schedules do, which opens the loader
            steps = self.trainer.estimated_stepping_batches
            assert steps > 0 or self.trainer.num_training_batches == float("inf")
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "loss_epoch"},
        }


class Ending(Callback):
    """Fails after a number of this start's batches."""

    def __init__(self, after: float) -> None:
        self.left = after

    def on_train_batch_end(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("a worker was lost")


def make_loader(kind: str, batch_size: int = 4) -> DataLoader[Any]:
    match kind:
        case "shuffled":
            return DataLoader(Numbers(), batch_size, shuffle=True)
        case "in order, in workers":
            workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
            return DataLoader(Numbers(), batch_size=4, drop_last=True, **workers)
        case "weighted":
            generator = torch.Generator().manual_seed(5)
            sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=generator)
            return DataLoader(Numbers(), batch_size=4, sampler=sampler)
        case "source":
            return DataLoader(Source(), batch_size=4, num_workers=2)
    return DataLoader(Stream(), batch_size=4)


QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "log_every_n_steps": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fit(
    folder: Path,
    kind: str,
    after: float = float("inf"),
    width: int = 8,
    batch_size: int = 4,
    **options: Any,
) -> list[dict[str, str]]:
    """One start, whose process would end with it; gives the rows of the log."""
    Companion.opened.clear()
    seed_everything(3, verbose=False)
    options = {"max_epochs": 3, **options}
    continuity = ContinuityCallback(str(folder / "checkpoints"), every_n_steps=1)
    callbacks = [LearningRateMonitor("step"), EarlyStopping("val", patience=2)]
    options |= {"logger": CSVLogger(folder), "callbacks": [*callbacks, continuity, Ending(after)]}
    trainer = Trainer(devices=1, default_root_dir=folder, **QUIET, **options)
    try:
        loader = make_loader(kind, batch_size)
        trainer.fit(Model(width), loader, DataLoader(Numbers(), batch_size=11))
    except ConnectionError:
        continuity._data.leave()
    (version,) = (folder / "lightning_logs").iterdir()
    return list(csv.DictReader((version / "metrics.csv").open()))


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_another_training_is_refused_without_a_stack_trace(tmp_path, capfd):
    fit(tmp_path, "shuffled", after=3)
    with pytest.raises(SystemExit, match="2"):
        fit(tmp_path, "shuffled", batch_size=6)
    assert "batch_size is 6, but 4" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        fit(tmp_path, "shuffled", width=9)
    assert "net.0.weight is [9, 3], but [8, 3]" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_promised_is_told_and_the_training_goes_on(tmp_path, capfd, monkeypatch):
    fit(tmp_path / "fork", "shuffled", max_epochs=1, strategy=DDPStrategy(start_method="fork"))
    assert "starts processes by fork: no checkpoints" in capfd.readouterr().out
    assert not (tmp_path / "fork/checkpoints").exists()
    monkeypatch.setattr(Model, "configure_model", lambda self: None)  # that strategy wants one
    sharded = ModelParallelStrategy(1, 1, process_group_backend="gloo")
    with mock.patch.dict("os.environ"):  # in which Lightning leaves its variables
        assert fit(tmp_path / "sharded", "shuffled", max_epochs=1, strategy=sharded)
    dist.destroy_process_group()
    told = "the strategy ModelParallelStrategy is none of ddp, fsdp and one device: no checkpoints"
    assert told in capfd.readouterr().out
    assert not (tmp_path / "sharded/checkpoints").exists()
    fit(tmp_path, "shuffled", max_epochs=1)
    again = ContinuityCallback(str(tmp_path / "checkpoints"))
    trainer = Trainer(max_epochs=1, logger=False, callbacks=[again], default_root_dir=tmp_path)
    trainer.fit(Model(), make_loader("shuffled"))
    assert "a second training of one script" in capfd.readouterr().out
    monkeypatch.delenv("CHECKPOINT_DIR", raising=False)
    trainer = Trainer(
        max_epochs=1, logger=False, callbacks=[ContinuityCallback()], default_root_dir=tmp_path
    )
    trainer.fit(Model(), make_loader("shuffled"))
    assert "fabric_train" not in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_no_numbers_end_the_fit_and_are_not_committed(tmp_path, monkeypatch):
    step = Model.training_step

    def diverge(self: Model, batch: torch.Tensor) -> torch.Tensor:
        loss = step(self, batch)
        return loss * float("nan") if self.global_step == 5 else loss

    monkeypatch.setattr(Model, "training_step", diverge)
    with pytest.raises(DivergedError, match="after step 6, so no checkpoint of it was written"):
        fit(tmp_path, "shuffled")
    assert max(tmp_path.glob("checkpoints/step-*")).name.startswith("step-0000000005")


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_pytorch_lightning_goes_on_too(tmp_path, capfd):
    old = pytest.importorskip("pytorch_lightning")

    class Old(old.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss = self.net(batch[:, 1:]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    for steps in (4, 8):
        Companion.opened.clear()
        trainer = old.Trainer(
            max_steps=steps,
            logger=old.loggers.CSVLogger(tmp_path),
            callbacks=[ContinuityCallback(str(tmp_path / "checkpoints"))],
            default_root_dir=tmp_path,
            **QUIET,
        )
        trainer.fit(Old(), make_loader("shuffled"))
    assert "goes on after step 4" in capfd.readouterr().out
    (version,) = (tmp_path / "lightning_logs").iterdir()
    rows = csv.DictReader((version / "metrics.csv").open())
    assert [int(row["step"]) for row in rows] == list(range(8))


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_each_step_once_in_one_folder(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for after in (5, math.inf):
        Companion.opened.clear()
        continuity = ContinuityCallback(str(tmp_path / "checkpoints"), every_n_steps=3)
        trainer = Trainer(
            max_steps=9,
            logger=TensorBoardLogger(tmp_path),
            callbacks=[continuity, Ending(after)],
            default_root_dir=tmp_path,
            **QUIET,
        )
        try:
            trainer.fit(Model(), make_loader("shuffled"))
        except ConnectionError:
            continuity._data.leave()
    (version,) = (tmp_path / "lightning_logs").iterdir()
    events = reader.EventAccumulator(str(version), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("loss_step")] == list(range(9))
