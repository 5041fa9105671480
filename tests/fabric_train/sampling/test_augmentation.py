"""Draws that belong to a sample and an epoch."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fabric_train.sampling.augmentation import Augmented, shift
from fabric_train.sampling.sampler import GlobalBatchSampler

IMAGES = torch.rand(20, 1, 8, 8)
DATASET = TensorDataset(IMAGES, torch.arange(20))


def read(*, world: int = 1, workers: int = 0, steps: range = range(10)) -> list[torch.Tensor]:
    """Every sample's image in order, from ranks one after the other within each step."""
    found: list[torch.Tensor] = []
    for step in steps:
        for rank in range(world):
            sampler = GlobalBatchSampler(
                size=20,
                global_batch_size=8,
                virtual_shards=4,
                rank=rank,
                world_size=world,
                seed=3,
                with_epochs=True,
            )
            sampler.seek(first_step=step, stop_step=step + 1)
            dataset = Augmented(DATASET, shift, seed=3)
            loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers)
            for images, _ in loader:
                found += images
    return found


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (3, 0), (4, 0)])
def test_a_sample_is_changed_alike_on_whichever_rank_and_by_whichever_process(world, workers):
    # Steps 2 and 7 cross the end of an epoch.
    assert torch.equal(
        torch.stack(read(world=world, workers=workers, steps=range(2, 4))),
        torch.stack(read(steps=range(2, 4))),
    )


def test_a_sample_is_changed_anew_in_each_epoch():
    dataset = Augmented(DATASET, shift, seed=3)
    images, labels = dataset[[(epoch, 5) for epoch in range(8)]]
    assert labels.tolist() == [5] * 8
    assert len({image.numpy().tobytes() for image in images}) > 1
    again, _ = dataset[[(2, 5)]]
    assert torch.equal(again[0], images[2])


def test_a_shift_moves_by_at_most_a_pixel_and_keeps_the_shape():
    image = torch.zeros(1, 8, 8)
    image[0, 4, 4] = 1
    places = set()
    for seed in range(60):
        moved, label = shift(torch.Generator().manual_seed(seed), image, torch.tensor(7))
        assert moved.shape == image.shape
        assert label == 7
        places.add(tuple(moved[0].nonzero()[0].tolist()))
    assert places == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}
